"""The four tools: what limits it, why a request was slow, what if, and advice."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from seqtop.explain.explanation import (
    explain,
    find_request_of_client,
    request_ids,
    similar_ids,
)
from seqtop.history.step_series import Interval, StepSeries
from seqtop.history.timeline import RecordingError, Timeline
from seqtop.history.token_gaps import token_gaps
from seqtop.mcp import answers
from seqtop.mcp.answers import (
    AdviceAnswer,
    LimitsAnswer,
    PredictionAnswer,
    RequestAnswer,
    ToolAnswer,
)
from seqtop.mcp.source import Source
from seqtop.state.sliding_window import WINDOW
from seqtop.state.slo import SloError, parse
from seqtop.transport.connection import UnreachableError
from seqtop.whatif.advise import advise
from seqtop.whatif.driver import ShowProgress, TimeUpError
from seqtop.whatif.predict import WHATIF_ERRORS, Question, predict

_MOST_CHANGES: Final = 20
_LONGEST_WORD: Final = 1_000
_ERRORS: Final = (RecordingError, UnreachableError, SloError, *WHATIF_ERRORS)
"""The errors of what is read and of what is asked; each is one sentence for the user."""


class ToolError(Exception):
    """A tool has no answer; the message is one sentence for the user."""


class Context:
    """The engine or recording that tools answer about, and their limits.

    Args:
        source: The engine or the recording.
        seconds: The limit on the time of a prediction and of advice.
        with_text: Whether prompts and outputs are shown.
        python: The Python that runs the engine's scheduler.
    """

    def __init__(
        self,
        source: Source,
        *,
        seconds: float,
        with_text: bool = False,
        python: str = sys.executable,
    ) -> None:
        self.source = source
        self.with_text = with_text
        self.seconds = seconds
        self.python = python
        self._replays = threading.Lock()
        self._is_closed = threading.Event()

    def close(self) -> None:
        """Ends replays that run, and waits for their end."""
        self._is_closed.set()
        with self._replays:
            pass

    @contextmanager
    def replaying(self, is_cancelled: threading.Event) -> Iterator[tuple[str, ShowProgress]]:
        """Yields the path of a recording, and a function that ends replays when the time is up.

        One prediction is made after the other: each uses several processes.

        Raises:
            TimeUpError: The time was up before the one before had ended.
        """
        end = time.monotonic() + self.seconds

        def show_progress(_num_complete: float, _total: int) -> None:
            if is_cancelled.is_set() or self._is_closed.is_set() or time.monotonic() > end:
                raise TimeUpError

        if not self._replays.acquire(timeout=self.seconds):
            raise TimeUpError
        try:
            with self.source.recording() as path:
                yield path, show_progress
        finally:
            self._replays.release()


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool and its arguments; its subclasses are the tools."""

    name: ClassVar[str]
    title: ClassVar[str]
    description: ClassVar[str]
    answer_type: ClassVar[type[ToolAnswer]]

    def answer(self, context: Context, is_cancelled: threading.Event) -> ToolAnswer:
        """Returns the answer.

        Args:
            context: What it is about.
            is_cancelled: Set when nobody waits for the answer any more.

        Raises:
            ToolError: There is no answer.
            Exception: One of `_ERRORS`.
        """
        raise NotImplementedError


class WhatLimits(Tool):
    """The limits of the engine."""

    name = "what_limits"
    title = "What limits it"
    description = (
        "What limits the inference engine: the verdict on the last minute and on the whole run, the"
        " main figures (queue, KV cache, throughput, TTFT, ITL, E2E) and the slowest requests. Of a"
        " recording, the last minute is that before its end."
    )
    answer_type = LimitsAnswer

    def answer(self, context: Context, is_cancelled: threading.Event) -> LimitsAnswer:
        """Returns what limits it."""
        source = context.source
        with source.timeline() as timeline:
            if (gone := source.gone()) is not None:
                raise ToolError(f"{gone}; its past can still be explained and predicted")
            state = timeline.at(timeline.last)
            minute = _last_minute(timeline, state.time)
            gaps = token_gaps(timeline, state.time - WINDOW, state.time)
            return answers.limits(state, source.name, minute, gaps, is_live=source.is_live)


def _last_minute(timeline: Timeline, now: float) -> Interval:
    """Returns the steps of the minute before a time, epoch seconds."""
    series = StepSeries(timeline)
    with timeline.lock:
        series.skip(timeline.index.at_time(now - WINDOW))
    while not series.update():
        pass
    return series.before(now, WINDOW)


class ExplainRequest(Tool):
    """The parts of the time of a request."""

    name = "explain_request"
    title = "Why it was slow"
    description = (
        "Why a request was slow: its time to first token and end-to-end latency as parts that add"
        " up to them, the longest first, each with its cause (waiting for blocks or slots, behind"
        " others, preempted, prefill, decode, the host)."
    )
    answer_type = RequestAnswer

    request: Annotated[
        str, Meta(description="the id of the request", min_length=1, max_length=_LONGEST_WORD)
    ]

    def answer(self, context: Context, is_cancelled: threading.Event) -> RequestAnswer:
        """Returns where the time of the request went."""
        with context.source.timeline() as timeline:
            found = find_request_of_client(timeline, self.request)
            if found is None:
                raise ToolError(self._unknown(timeline))
            request, position = found
            texts: tuple[str | None, str | None] = None, None
            if context.with_text:
                texts = _texts(timeline, request.request_id, position)
            return answers.explained(explain(timeline, request, position), texts)

    def _unknown(self, timeline: Timeline) -> str:
        known = request_ids(timeline)
        if not known:
            return f"no request {self.request!r} is recorded, and no other one"
        if similar := similar_ids(self.request, known):
            return f"no request {self.request!r} is recorded; similar ids: {', '.join(similar)}"
        return f"no request {self.request!r} is recorded, nor a similar id; the last is {known[0]}"


def _texts(timeline: Timeline, name: str, position: int) -> tuple[str | None, str | None]:
    """Returns the prompt and the output of a request at a position."""
    state = timeline.at(position)
    request = state.requests.get(name)
    if request is None:
        return None, None
    outputs = [state.sequences[seq_id].text for seq_id in request.seq_ids[:1]]
    return request.prompt, outputs[0] if outputs else None


class WhatIf(Tool):
    """A prediction with other settings."""

    name = "what_if"
    title = "What if"
    description = (
        "Predicts the recorded run with other settings, by the engine's own scheduler: decisions"
        " (preemptions, queue) and times. An unknown setting is answered with the names of all."
    )
    answer_type = PredictionAnswer

    settings: Annotated[
        list[Annotated[str, Meta(max_length=_LONGEST_WORD)]],
        Meta(
            description="NAME=VALUE or NAME=+20%, such as num_gpu_blocks=+20% or max_num_seqs=64",
            max_length=_MOST_CHANGES,
        ),
    ] = []
    scale_arrivals: Annotated[
        float, Meta(description="requests arrive this many times as fast", gt=0, le=1_000)
    ] = 1.0
    anyway: Annotated[
        bool, Meta(description="predict even if the recording cannot be repeated")
    ] = False

    def answer(self, context: Context, is_cancelled: threading.Event) -> PredictionAnswer:
        """Returns the prediction."""
        if not self.settings and self.scale_arrivals == 1.0:
            raise ToolError("nothing is changed: give settings, such as num_gpu_blocks=+20%")
        try:
            with context.replaying(is_cancelled) as (path, progress):
                question = Question(
                    source=path,
                    changes=self.settings,
                    scale_arrivals=self.scale_arrivals,
                    anyway=self.anyway,
                    python=context.python,
                )
                return answers.predicted(predict(question, progress))
        except TimeUpError:
            raise ToolError(_time_up("no prediction", context)) from None


class Advise(Tool):
    """The settings that meet objectives best."""

    name = "advise"
    title = "Advise"
    description = (
        "Searches the settings with which the requests of the recorded run meet latency objectives"
        " best, by the engine's own scheduler. If the time is up, the best so far are named."
    )
    answer_type = AdviceAnswer

    objectives: Annotated[
        str,
        Meta(
            description="limits on ttft, itl, tpot, queue and e2e, such as ttft=500ms,tpot=50ms",
            min_length=1,
            max_length=_LONGEST_WORD,
        ),
    ]
    anyway: Annotated[bool, Meta(description="search even if the recording cannot be repeated")] = (
        False
    )

    def answer(self, context: Context, is_cancelled: threading.Event) -> AdviceAnswer:
        """Returns the advice."""
        slo = parse(self.objectives)
        if not slo:
            raise ToolError("an objective is needed, such as ttft=500ms")
        try:
            with context.replaying(is_cancelled) as (path, progress):
                question = Question(source=path, anyway=self.anyway, python=context.python)
                advice = advise(question, slo, progress)
        except TimeUpError:
            raise ToolError(_time_up("no advice", context)) from None
        if advice.is_partial and advice.best is None:
            raise ToolError(_time_up("no advice", context))
        return answers.advised(advice, context.seconds)


def _time_up(what: str, context: Context) -> str:
    return f"{what} within {context.seconds:g} s; seqtop mcp --time-limit allows more"


TOOLS: Final[Mapping[str, type[Tool]]] = {
    tool.name: tool for tool in (WhatLimits, ExplainRequest, WhatIf, Advise)
}
"""The tools by name."""


def call(
    tool: type[Tool], arguments: Mapping[str, Any], context: Context, is_cancelled: threading.Event
) -> dict[str, Any]:
    """Returns the answer of a tool as a document of at most `answers.MAX_BYTES`.

    Raises:
        ToolError: There is no answer.
    """
    try:
        answer = msgspec.convert(arguments, tool).answer(context, is_cancelled)
        answer.notes[:0] = context.source.notes()
    except msgspec.ValidationError as error:
        raise ToolError(f"{tool.name}: {error}") from error
    except ToolError as error:
        raise ToolError(answers.short_line(str(error))) from error
    except _ERRORS as error:
        raise ToolError(answers.short_line(str(error))) from error
    return answers.as_document(answer)


def schema(type_: type[msgspec.Struct]) -> dict[str, Any]:
    """Returns the JSON Schema of arguments or of an answer, with the type at its root."""
    (_,), components = msgspec.json.schema_components([type_], ref_template="#/$defs/{name}")
    root = components.pop(type_.__name__)
    return {**root, "$defs": components} if components else root
