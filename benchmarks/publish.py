"""Measures the time of the engine's thread for publishing a step of 256 decodes.

The bundled engine runs its own model. The figures are CPU times of its thread for the step and for
publishing it, with and without a viewer. The peers are the step itself, and the encoding of the
same step for vLLM's workers with msgspec: an `ExecuteModelRequest` with every block table.
"""

from __future__ import annotations

import gc
import time
from contextlib import ExitStack

import msgspec

from benchmarks import running
from benchmarks.figure import Figure, Findings, Growth, Limit, middle
from benchmarks.listening import subscribed
from benchmarks.published import published

TITLE = "Publishing, in the engine's thread"
MAX_SHARE = 0.02
SIZES = (3, 26, 256)
STEPS = {3: 100, 26: 80, 256: 50}
WARM_UP = 5


def measure(*, tiny: bool = False) -> Findings:
    points: list[tuple[float, float]] = []
    for size in SIZES[:1] if tiny else SIZES:
        ours, step, encoding = _spent(size, 5 if tiny else STEPS[size])
        points.append((size, middle(ours) * 1e6))
    unheard, unheard_step, _ = _spent(size, 5 if tiny else STEPS[size], is_heard=False)
    value = middle(ours) * 1e6
    measured = f"CPU a step, median of {len(ours)}"
    figures = [
        Figure(
            what=f"{size} in decode, without a viewer",
            measured=measured,
            value=middle(unheard) * 1e6,
            unit="µs",
            peer="the bundled engine's step, one thread",
            peer_value=middle(unheard_step) * 1e6,
            ratio=middle(unheard) / middle(unheard_step),
            ratio_unit="%",
            ratio_limit=Limit(MAX_SHARE),
        ),
        Figure(
            what=f"{size} in decode, with a viewer",
            measured=measured,
            value=value,
            unit="µs",
            peer="the bundled engine's step, one thread",
            peer_value=middle(step) * 1e6,
            ratio=middle(ours) / middle(step),
            ratio_unit="%",
            ratio_limit=Limit(MAX_SHARE),
            note="Right after a step's forward pass nothing of it is in the processor's caches: the"
            " same record published a second time takes a quarter of it.",
        ),
        Figure(
            what=f"{size} in decode, with a viewer, beside vLLM's encoding",
            measured=measured,
            value=value,
            unit="µs",
            peer="msgspec encodes the ExecuteModelRequest, tables and all",
            peer_value=middle(encoding) * 1e6,
            ratio=middle(ours) / middle(encoding),
            ratio_unit="%",
        ),
    ]
    growth = [Growth("publishing a step", "sequences", "µs", points, limit=1.05)]
    return Findings(figures, [] if tiny else growth)


def _spent(
    size: int, num_steps: int, *, is_heard: bool = True
) -> tuple[list[float], list[float], list[float]]:
    """Returns CPU seconds of publishing, of the step, and of vLLM's encoding of it."""
    ours, theirs, encoding = [], [], []
    encoder = msgspec.msgpack.Encoder(enc_hook=lambda tokens: tokens.tobytes())
    with published(size) as scene, ExitStack() as stack:
        if is_heard:
            stack.enter_context(subscribed(scene.endpoint))
        gc.collect()
        for _ in range(WARM_UP + num_steps):
            started = time.thread_time()
            record = scene.engine.step()
            stepped = time.thread_time()
            scene.link.stepped(record)
            published_ = time.thread_time()
            encoder.encode(record.execute_model_req)
            encoded = time.thread_time()
            theirs.append(stepped - started)
            ours.append(published_ - stepped)
            encoding.append(encoded - published_)
        if scene.link.num_dropped:
            raise RuntimeError(f"{scene.link.num_dropped} messages were dropped")
    return ours[WARM_UP:], theirs[WARM_UP:], encoding[WARM_UP:]


if __name__ == "__main__":
    running.alone(measure)
