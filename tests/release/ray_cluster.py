"""Finds engines inside a Ray cluster of this machine, while they are killed and started again.

Two named actors publish the random load of simulated engines. `seqtop attach --ray` shows them on
a pseudo-terminal. One actor is killed for good, and created anew with another port; the process of
the other is killed, and Ray restarts it. Printed are the seconds until the fleet screen shows each
change. Needs the extra `ray`.

    python -m tests.release ray_cluster
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.release.fleet import RATE, SIZE, publish
from tests.support.commands import SEQTOP
from tests.support.terminal import Terminal

ROOT = Path(__file__).parents[2]
PORTS = 25_557, 25_559, 25_561
NAMES = "prefill", "decode"
LOADING_SECONDS = 6.0
"""The time that an engine takes to start again, as one with a model does: it is not missed then."""


class Engine:
    """An actor with a simulated engine on a thread of its own."""

    def __init__(self, name: str) -> None:
        from threading import Event, Thread

        import ray

        if ray.get_runtime_context().was_current_actor_reconstructed:
            time.sleep(LOADING_SECONDS)
        arguments: Any = (os.environ["SEQTOP_BIND"], name, 1, Event(), RATE)
        Thread(target=publish, args=arguments, daemon=True).start()

    def pid(self) -> int:
        return os.getpid()


def measure() -> dict[str, float]:
    """Returns the seconds until the screen showed each change."""
    import ray

    def create(name: str, port: int) -> Any:
        return (
            ray.remote(Engine)
            .options(
                name=name,
                max_restarts=-1,
                num_cpus=0,
                runtime_env={"env_vars": {"SEQTOP_BIND": f"tcp://127.0.0.1:{port}"}},
            )
            .remote(name)
        )

    seconds = {}
    with tempfile.TemporaryDirectory(prefix="sq") as folder:
        os.environ |= {"XDG_CONFIG_HOME": folder, "XDG_STATE_HOME": folder}
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=True,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
        )
        address = ray.get_runtime_context().gcs_address
        engines = {name: create(name, port) for name, port in zip(NAMES, PORTS, strict=False)}
        pids = {name: ray.get(engine.pid.remote()) for name, engine in engines.items()}
        app = Terminal(*SEQTOP, "attach", "--ray", address, size=SIZE, cwd=Path(folder))

        def shown(name: str, state: str) -> Callable[[], bool]:
            return lambda: any(
                name in line and state in line for line in app.text.splitlines()[3:8]
            )

        def await_row(what: str, *rows: tuple[str, str]) -> None:
            began = time.monotonic()
            for name, state in rows:
                app.wait_until(shown(name, state))
            seconds[what] = time.monotonic() - began

        try:
            await_row("both found", *((name, "LIVE") for name in NAMES))
            ray.kill(engines["prefill"], no_restart=True)
            await_row("killed for good", ("prefill", "LOST"))
            engines["prefill"] = create("prefill", PORTS[2])
            await_row("created anew, at another port", ("prefill", "LIVE"))
            os.kill(pids["decode"], signal.SIGKILL)
            await_row("process killed", ("decode", "LOST"))
            await_row("restarted by Ray", ("decode", "LIVE"))
            engines["third"] = create("third", PORTS[0])
            await_row("a third one", ("third", "LIVE"))
        finally:
            app.close()
            ray.shutdown()
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args(arguments)
    for what, seconds in measure().items():
        print(f"{what}: {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
