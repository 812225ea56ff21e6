"""Exports with `--redact`: two runs that differ only in their texts give the same files."""

from pathlib import Path
from typing import Any

import pytest

from seqtop.cli.main import main
from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import Chunk, Event, RequestArrived, RequestFinished, SequenceUpdate
from tests.support.broken_recordings import record
from tests.support.events import engine_info, preemption, stats, step, update

FORMATS = (
    ["--csv"],
    ["--csv", "--steps"],
    ["--perfetto"],
    ["--parquet"],
    ["--mooncake"],
    ["--vcr"],
    ["--otlp"],
)
WITH_TEXT = {"--csv", "--parquet", "--mooncake", "--vcr"}
"""The formats that contain texts or tokens."""


def run_of(word: str, token: int) -> tuple[Event, ...]:
    """Returns two requests with the same prompt, of which one is preempted."""

    def arrived(number: int) -> RequestArrived:
        return RequestArrived(
            request_id=f"req-{number}",
            arrival_time=float(number),
            seq_ids=[number],
            num_prompt_tokens=20,
            prompt=f"{word} " * 20,
            prompt_token_ids=Ints.of([token] * 20),
            cache_salt=word,
            eos_token_id=token,
        )

    def sampled(number: int, first: int, **changes: Any) -> SequenceUpdate:
        return update(
            number,
            request_id=f"req-{number}",
            tokens=[token],
            text=word,
            logprobs=[-1.0 / token],
            chunk=Chunk(num_tokens=20 if first else 1, num_computed_tokens=0 if first else 20),
            **changes,
        )

    end = RequestMetrics(1.0, 102.5, 100.0, 100.5, 99.0, 102.5)
    return (
        engine_info(),
        arrived(1),
        arrived(2),
        step(0, execute=None, sequences=[sampled(1, 1), sampled(2, 1)]),
        step(
            1,
            execute=None,
            sequences=[sampled(1, 0), update(2, SequenceStatus.WAITING)],
            preemptions=[preemption("req-2", lost=20, by="req-1")],
            stats=stats(num_waiting=1),
        ),
        step(2, execute=None, sequences=[sampled(1, 0, stop_reason=word)]),
        RequestFinished(
            request_id="req-1", time=102.5, status=SequenceStatus.FINISHED_STOPPED, metrics=end
        ),
    )


def exported(directory: Path, events: tuple[Event, ...], options: list[str]) -> dict[str, bytes]:
    directory.mkdir()
    recording, output = directory / "run.seqtop", directory / "out"
    record(recording, events)
    assert main(["export", str(recording), *options, "-o", str(output)]) == 0
    if output.is_dir():
        return {path.name: path.read_bytes() for path in output.iterdir()}
    return {"": output.read_bytes()}


@pytest.mark.parametrize("form", FORMATS, ids=" ".join)
def test_a_file_depends_on_no_text_and_no_token(tmp_path: Path, form: list[str]) -> None:
    if form == ["--parquet"]:
        pytest.importorskip("pyarrow")
    one, other = run_of("fox", 7), run_of("hen", 9)
    redacted = exported(tmp_path / "one", one, [*form, "--redact"])
    assert redacted == exported(tmp_path / "other", other, [*form, "--redact"])
    assert all(redacted.values())
    whole = [exported(tmp_path / word, run, form) for word, run in (("a", one), ("b", other))]
    assert (whole[0] != whole[1]) == (form[0] in WITH_TEXT and "--steps" not in form)
