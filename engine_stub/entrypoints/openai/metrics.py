"""The figures of ``/metrics``: those of vLLM's server that mean the same here, with its names.

The engine's thread counts a step by plain additions, without a lock that it could wait for, and the
HTTP thread writes the sums down whenever it is asked. They are written in Prometheus' text format,
version 0.0.4. Its usual library counts one value at a time and under a lock, which would cost more
than a whole step's sums do here; the format alone is a line per figure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, Literal

from engine_stub.failure_log import log_failure
from engine_stub.step_record import StepRecord, sampled_request_ids
from seqtop.sequence import SequenceGroup, SequenceStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# The bounds are vLLM's, so that percentiles from both can be compared.
_FIRST_TOKEN_BOUNDS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_BOUNDS: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_BOUNDS: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_REASONS: Final = ("stop", "length", "abort", "error")


class Metric:
    """A number, or one for each value of a label.

    Attributes:
        values: The numbers by the label's value; without a label, under "".
    """

    def __init__(
        self,
        name: str,
        kind: Literal["gauge", "counter"],
        meaning: str,
        *,
        label: str = "",
        label_values: Sequence[str] = ("",),
    ) -> None:
        self.name, self.kind, self.meaning = name, kind, meaning
        self._label = label
        self.values: dict[str, float] = dict.fromkeys(label_values, 0)

    @property
    def value(self) -> float:
        """The number of a figure without a label."""
        return self.values[""]

    @value.setter
    def value(self, value: float) -> None:
        self.values[""] = value

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Yields the suffix of the name, the label and the value of each number."""
        for label_value, number in self.values.items():
            yield "", f'{self._label}="{label_value}"' if self._label else "", number


class Histogram:
    """The distribution of durations.

    Args:
        bounds: The upper bounds of its buckets, ascending.
    """

    kind = "histogram"

    def __init__(self, name: str, meaning: str, bounds: Sequence[float]) -> None:
        self.name, self.meaning = name, meaning
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Adds a duration that occurred `times` times; one below 0, by a changed clock, is 0."""
        seconds = max(seconds, 0.0)
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._sum += seconds * times

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Yields the suffix of the name, the label and the value of each number."""
        # One copy, so that the buckets agree with the count while the engine's thread adds to them.
        totals = list(accumulate(self._counts.copy()))
        for bound, total in zip((*self._bounds, "+Inf"), totals, strict=True):
            yield "_bucket", f'le="{bound}"', total
        yield "_count", "", totals[-1]
        yield "_sum", "", self._sum


class EngineMetrics:
    """Counts the steps of an engine; `stepped` is for its thread, and `text` for any other."""

    def __init__(self) -> None:
        self._running = Metric("vllm:num_requests_running", "gauge", "Sequences that run.")
        self._waiting = Metric("vllm:num_requests_waiting", "gauge", "Sequences that wait.")
        self._swapped = Metric(
            "vllm:num_requests_swapped", "gauge", "Sequences that are swapped out."
        )
        self._cache_usage = Metric(
            "vllm:kv_cache_usage_perc", "gauge", "The part of the KV cache in use, from 0 to 1."
        )
        self._prefix_queries = Metric(
            "vllm:prefix_cache_queries_total", "counter", "Tokens looked up in the prefix cache."
        )
        self._prefix_hits = Metric(
            "vllm:prefix_cache_hits_total", "counter", "Tokens found in the prefix cache."
        )
        self._preemptions = Metric(
            "vllm:num_preemptions_total", "counter", "Preemptions of running requests."
        )
        self._prompt_tokens = Metric(
            "vllm:prompt_tokens_total", "counter", "Tokens of prompts that were processed."
        )
        self._output_tokens = Metric(
            "vllm:generation_tokens_total", "counter", "Tokens that were sampled."
        )
        self._ended = Metric(
            "vllm:request_success_total",
            "counter",
            "Requests that ended, by the reason.",
            label="finished_reason",
            label_values=_REASONS,
        )
        self._first_token = Histogram(
            "vllm:time_to_first_token_seconds",
            "Time from a request's arrival to its first token.",
            _FIRST_TOKEN_BOUNDS,
        )
        self._next_token = Histogram(
            "vllm:inter_token_latency_seconds",
            "Time between two steps that gave a request tokens.",
            _TOKEN_BOUNDS,
        )
        self._latency = Histogram(
            "vllm:e2e_request_latency_seconds",
            "Time from a request's arrival to its end, of those that were not aborted.",
            _REQUEST_BOUNDS,
        )
        self._queue_time = Histogram(
            "vllm:request_queue_time_seconds",
            "Time from a request's arrival to its first step, of those that were not aborted.",
            _REQUEST_BOUNDS,
        )
        # By request id, the time of the latest step that gave an unfinished request tokens.
        self._last_token_times: dict[str, float] = {}

    def stepped(self, record: StepRecord) -> None:
        """Counts a step. An error is logged: figures must not end the engine."""
        try:
            self._count_state(record)
            self._count_tokens(record)
            self._count_ends(record)
        except Exception:  # noqa: BLE001 - logged; the engine runs without figures
            log_failure("the figures of step %s cannot be counted", str(record.step))

    def text(self, model_name: str) -> str:
        """Returns the figures in Prometheus' text format."""
        figures = [
            figure for figure in vars(self).values() if isinstance(figure, Metric | Histogram)
        ]
        common = f'engine="0",model_name="{_escaped(model_name)}"'
        lines = []
        for figure in figures:
            lines += [
                f"# HELP {figure.name} {figure.meaning}",
                f"# TYPE {figure.name} {figure.kind}",
            ]
            lines += [
                f"{figure.name}{suffix}{{{common}{label and ','}{label}}} {float(value)}"
                for suffix, label, value in figure.samples()
            ]
        return "\n".join(lines) + "\n"

    def _count_state(self, record: StepRecord) -> None:
        self._running.value = record.num_running
        self._waiting.value = record.num_waiting
        self._swapped.value = record.num_swapped
        self._cache_usage.value = record.blocks.used / record.blocks.total
        self._prefix_queries.value = record.blocks.prefix_queries
        self._prefix_hits.value = record.blocks.prefix_hits
        self._preemptions.value += len(record.preemptions)

    def _count_tokens(self, record: StepRecord) -> None:
        last_times = self._last_token_times
        self._output_tokens.value += len(record.decodes.token_ids)
        self._output_tokens.value += sum(len(update.new_token_ids) for update in record.others)
        sampled = sampled_request_ids(record.decodes, record.others)
        for group in record.changed_metrics:
            if group.request_id in sampled and group.request_id not in last_times:
                self._prompt_tokens.value += len(group.prompt_token_ids)
                self._first_token.observe(record.time - group.arrival_time)
        # Most requests of a step got their tokens before in the same one.
        for last_time, times in Counter(map(last_times.get, sampled)).items():
            if last_time is not None:
                self._next_token.observe(record.time - last_time, times)
        last_times.update(dict.fromkeys(sampled, record.time))

    def _count_ends(self, record: StepRecord) -> None:
        for group in (*record.finished, *record.ignored, *record.aborted):
            self._last_token_times.pop(group.request_id, None)
            is_error = group.request_id in record.errors
            self._ended.values["error" if is_error else _reason(group)] += 1
        for group in record.finished:
            if group.request_id not in record.errors:
                self._latency.observe(record.time - group.arrival_time)
                self._queue_time.observe(group.metrics.time_in_queue or 0.0)
            if group.pooled_data is not None:
                self._prompt_tokens.value += len(group.prompt_token_ids)


def _reason(group: SequenceGroup) -> str:
    return SequenceStatus.get_finished_reason(group.first_seq.status) or "abort"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
