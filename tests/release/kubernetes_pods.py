"""Finds engines in pods, while they are killed and replaced, with a server in a cluster's place.

The server answers lists and watches as the API of Kubernetes does (`tests.support.kubernetes_api`).
The engines are processes at loopback addresses of their own, which are those of the pods.
`seqtop attach --kubernetes` shows them on a pseudo-terminal. Printed are the seconds until the
fleet screen shows each change, and the processor time and the memory of the viewer. Needs the extra
`kubernetes`.

    python -m tests.release kubernetes_pods
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tests.release.fleet import RATE, SIZE, publish
from tests.support.commands import SEQTOP
from tests.support.kubernetes_api import (
    PORT,
    KubernetesApi,
    address,
    pod,
    serving,
    write_kubeconfig,
)
from tests.support.terminal import Terminal


def measure(seconds_at_rest: float) -> dict[str, str]:
    """Returns the figures: how soon each change was on the screen, and the viewer's cost.

    Args:
        seconds_at_rest: The time in which the processor time of the viewer is measured.
    """
    spawn, api, figures = multiprocessing.get_context("spawn"), KubernetesApi(), {}
    hangs = spawn.Event()
    processes = {}
    with tempfile.TemporaryDirectory(prefix="sq") as folder:
        os.environ |= {
            "XDG_CONFIG_HOME": folder,
            "XDG_STATE_HOME": folder,
            "KUBECONFIG": f"{folder}/config",
        }

        def start(name: str, number: int) -> None:
            """Starts the engine of a pod at an address, and lists the pod."""
            arguments = (f"tcp://{address(number)}:{PORT}", "the model", number, hangs, RATE)
            processes[name] = spawn.Process(target=publish, args=arguments, daemon=True)
            processes[name].start()
            api.set(pod(name, address(number)))

        def shown(name: str, state: str) -> Callable[[], bool]:
            return lambda: any(
                name in line and state in line for line in app.text.splitlines()[3:9]
            )

        def await_rows(what: str, *rows: tuple[str, str]) -> None:
            began = time.monotonic()
            for name, state in rows:
                app.wait_until(shown(name, state))
            figures[what] = f"{time.monotonic() - began:.1f} s"

        with serving(api) as port:
            write_kubeconfig(Path(folder, "config"), port)
            for number in (1, 2, 3):
                start(f"vllm-{number}", number)
            app = Terminal(*SEQTOP, "attach", "--kubernetes", "app=vllm", size=SIZE)
            try:
                await_rows("three found", *((f"vllm-{number}", "LIVE") for number in (1, 2, 3)))
                processes["vllm-2"].kill()
                api.delete("vllm-2")
                await_rows("killed and deleted", ("vllm-2", "LOST"))
                start("vllm-2", 4)
                await_rows("replaced at another address", ("vllm-2", "LIVE"))
                start("vllm-5", 5)
                await_rows("a fourth one", ("vllm-5", "LIVE"))
                api.forget()
                api.end_watches()
                start("vllm-6", 6)
                await_rows("a fifth one, after 410 Gone", ("vllm-6", "LIVE"))
                viewer = psutil.Process(app.process.pid)
                before, until = sum(viewer.cpu_times()[:2]), time.monotonic() + seconds_at_rest
                while time.monotonic() < until:
                    app.read(0.1)
                cpu = (sum(viewer.cpu_times()[:2]) - before) / seconds_at_rest
                figures["viewer"] = f"{cpu:.0%} of a core, {viewer.memory_info().rss / 1e6:.0f} MB"
            finally:
                app.close()
                for process in processes.values():
                    process.kill()
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="time at rest")
    for what, figure in measure(parser.parse_args(arguments).seconds).items():
        print(f"{what}: {figure}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
