"""Spans as OTLP JSON lines, which the OpenTelemetry Collector reads (`otlp_json_file`).

A line has the spans of one request. Names are vLLM's: `llm_request` and its attributes as vLLM
exports them, and below it `vllm_queue`, `vllm_prefill` and `vllm_decode` (vllm-project/vllm#44402).
A request has the parent that its `traceparent` names, if the engine reports it. What the scheduler
said is in events, with attributes of seqtop's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from seqtop import __version__
from seqtop.export import nanoseconds
from seqtop.export.lifecycle import EngineRun, RequestLifecycle
from seqtop.wire.messages import EngineInfo

_SPAN_NAMES = {"queued": "vllm_queue", "prefill": "vllm_prefill", "decode": "vllm_decode"}
_INTERNAL, _SERVER = 1, 2
"""`SpanKind` of OTLP."""

_TRACEPARENT = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
"""W3C's Trace Context: the version, the trace, the span of the client, and flags."""

Attributes = Mapping[str, Any]


def encode(runs: list[EngineRun]) -> Iterator[bytes]:
    """Yields a line for each request whose arrival is known."""
    for run in runs:
        for lifecycle in run.requests.values():
            if spans := _spans(run, lifecycle):
                yield _line(run.info, spans)


def _line(info: EngineInfo | None, spans: list[dict[str, Any]]) -> bytes:
    resource: dict[str, Any] = {}
    if info is not None:
        resource = {
            "service.name": info.engine_id,
            "service.instance.id": info.incarnation,
            "seqtop.engine": info.engine,
        }
    scope = {"scope": {"name": "seqtop", "version": __version__}, "spans": spans}
    content = {"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}
    return msgspec.json.encode({"resourceSpans": [content]}) + b"\n"


def _spans(run: EngineRun, lifecycle: RequestLifecycle) -> list[dict[str, Any]]:
    """Returns the span of a request and those of its phases; none if its arrival is unknown."""
    request, metrics = lifecycle.request, lifecycle.request.metrics
    start = nanoseconds.of_time(metrics.arrival_time)
    if start is None:
        return []
    end = nanoseconds.of_time(metrics.finished_time or lifecycle.until) or start
    # Ids are derived, so that two exports of one recording agree.
    identity = f"{run.incarnation}\0{request.request_id}"
    trace_id = _id(identity, 16)
    parent = ""
    if known := _TRACEPARENT.fullmatch(request.traceparent):
        trace_id, parent = known.groups()
    root = _span(
        trace_id, _id(f"{identity}\0", 8), parent, "llm_request", _SERVER, start, max(end, start)
    )
    root["attributes"] = _attributes(_request_attributes(run.info, lifecycle))
    root["events"] = _events(lifecycle)
    spans = [root]
    for number, span in enumerate(request.spans):
        name = _SPAN_NAMES.get(span.kind)
        first = nanoseconds.of_time(span.start)
        last = nanoseconds.of_time(span.end) or end
        if name is None or first is None or last < first:
            continue
        span_id = _id(f"{identity}\0{number}", 8)
        child = _span(trace_id, span_id, root["spanId"], name, _INTERNAL, first, last)
        if span.num_steps:
            counts = {"seqtop.num_steps": span.num_steps, "seqtop.num_tokens": span.num_tokens}
            child["attributes"] = _attributes(counts)
        spans.append(child)
    return spans


def _span(
    trace_id: str, span_id: str, parent: str, name: str, kind: int, start: int, end: int
) -> dict[str, Any]:
    return {
        "traceId": trace_id,
        "spanId": span_id,
        "parentSpanId": parent,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
    }


def _request_attributes(info: EngineInfo | None, lifecycle: RequestLifecycle) -> Attributes:
    request, metrics = lifecycle.request, lifecycle.request.metrics
    params, latencies, wait = request.sampling_params, lifecycle.latencies(), lifecycle.wait
    return {
        "gen_ai.request.id": request.request_id,
        "gen_ai.response.model": info and info.model,
        "gen_ai.request.max_tokens": params and params.max_tokens,
        "gen_ai.request.temperature": params and params.temperature,
        "gen_ai.request.top_p": params and params.top_p,
        "gen_ai.usage.prompt_tokens": request.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": sum(
            len(sequence.output_token_ids) for sequence in lifecycle.sequences
        ),
        "gen_ai.usage.num_sequences": len(lifecycle.sequences),
        "gen_ai.latency.time_in_queue": metrics.time_in_queue,
        "gen_ai.latency.time_to_first_token": latencies["ttft"],
        "gen_ai.latency.e2e": latencies["e2e_latency"],
        "gen_ai.latency.time_in_model_execute": metrics.model_execute_time,
        "seqtop.finish_reason": request.finish_reason,
        "seqtop.num_preemptions": request.num_preemptions,
        "seqtop.num_lost_tokens": request.num_lost_tokens,
        **{f"seqtop.wait.{cause}": seconds for cause, seconds in wait.by_cause.items()},
    }


def _events(lifecycle: RequestLifecycle) -> list[dict[str, Any]]:
    """Returns the preemptions, and the waits where the scheduler's reason changes."""
    observed = lifecycle.observations
    moments: list[tuple[float, str, Attributes]] = [
        (
            time,
            "preempted",
            {
                "seqtop.step": step,
                "seqtop.preemption.mode": preemption.mode,
                "seqtop.preemption.for_request_id": preemption.for_request_id,
                "seqtop.num_lost_tokens": preemption.num_lost_tokens,
            },
        )
        for time, (step, preemption) in observed.preemptions.items()
    ]
    last = None
    for time, cause in observed.waits:
        if cause != last:
            moments.append((time, "waits", {"seqtop.wait.cause": cause}))
        last = cause
    first_token = lifecycle.request.metrics.first_token_time
    if first_token is not None:
        moments.append((first_token, "first token", {}))
    return [
        {"timeUnixNano": str(moment), "name": name, "attributes": _attributes(attributes)}
        for time, name, attributes in sorted(moments, key=lambda item: item[0])
        if (moment := nanoseconds.of_time(time)) is not None
    ]


def _attributes(values: Attributes) -> list[dict[str, Any]]:
    """Returns attributes as OTLP JSON has them, without those whose value is `None`."""
    return [
        {"key": key, "value": _value(value)} for key, value in values.items() if value is not None
    ]


def _value(value: str | float) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}  # 64-bit integers are strings in protobuf's JSON
        case float():
            return {"doubleValue": value}
        case _:
            return {"stringValue": value}


def _id(text: str, size: int) -> str:
    return blake2b(text.encode(errors="replace"), digest_size=size).hexdigest()
