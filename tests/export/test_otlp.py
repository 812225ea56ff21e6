"""Spans as OTLP JSON lines, decoded with OpenTelemetry's own protos."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seqtop.export import nanoseconds, otlp
from seqtop.export.lifecycle import read_runs
from seqtop.history import FileStore
from tests.support.broken_recordings import record
from tests.support.events import arrival, engine_info, step

service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="opentelemetry-proto is not installed",
)
json_format = pytest.importorskip("google.protobuf.json_format")


def decoded(line: bytes) -> list[Any]:
    """The spans of a line. OTLP writes ids in hexadecimal, protobuf's JSON reads base64."""
    text = re.sub(
        r'"((?:trace|span|parentSpan)Id)":"([0-9a-f]*)"',
        lambda match: f'"{match[1]}":"{base64.b64encode(bytes.fromhex(match[2])).decode()}"',
        line.decode(),
    )
    request = json_format.ParseDict(json.loads(text), service.ExportTraceServiceRequest())
    ((scope,),) = [resource.scope_spans for resource in request.resource_spans]
    return list(scope.spans)


def values(attributes: Any) -> dict[str, Any]:
    return {it.key: getattr(it.value, it.value.WhichOneof("value")) for it in attributes}


def test_spans_of_a_request_are_its_phases_and_events_what_the_scheduler_said(
    recorded: Path,
) -> None:
    with FileStore(recorded) as recording:
        (run,) = read_runs(recording)
    lines = list(otlp.encode([run]))
    num_preempted = 0
    for line, lifecycle in zip(lines, run.requests.values(), strict=True):
        request, metrics = lifecycle.request, lifecycle.request.metrics
        root, *children = decoded(line)
        found = values(root.attributes)
        assert (root.name, found["gen_ai.request.id"]) == ("llm_request", request.request_id)
        assert found["gen_ai.usage.prompt_tokens"] == request.num_prompt_tokens
        assert found.get("gen_ai.latency.time_in_queue") == metrics.time_in_queue
        assert root.start_time_unix_nano == nanoseconds.of_time(metrics.arrival_time)
        end = metrics.finished_time or lifecycle.until
        assert root.end_time_unix_nano == nanoseconds.of_time(end)
        for child in children:
            assert (child.trace_id, child.parent_span_id) == (root.trace_id, root.span_id)
            assert root.start_time_unix_nano <= child.start_time_unix_nano
            assert child.start_time_unix_nano <= child.end_time_unix_nano <= root.end_time_unix_nano
        names = [child.name for child in children]
        assert names == [
            name
            for span in request.spans
            if (name := {"queued": "vllm_queue"}.get(span.kind, f"vllm_{span.kind}"))
            in {"vllm_queue", "vllm_prefill", "vllm_decode"}
        ]
        preempted = [event for event in root.events if event.name == "preempted"]
        assert len(preempted) == request.num_preemptions
        for event in preempted:
            victim_of = values(event.attributes)["seqtop.preemption.for_request_id"]
            assert victim_of in run.requests
            num_preempted += 1
    assert num_preempted
    assert len({decoded(line)[0].trace_id for line in lines}) == len(lines)
    assert b"Once upon" not in b"".join(lines)


@pytest.mark.parametrize(
    ("traceparent", "parent"),
    [
        (f"00-{'4b' * 16}-{'0f' * 8}-01", ("4b" * 16, "0f" * 8)),
        (f"00-{'4B' * 16}-{'0f' * 8}-01", None),
        ("00-4b-0f-01", None),
        ("", None),
    ],
)
def test_a_request_is_below_the_span_of_its_client(
    tmp_path: Path, traceparent: str, parent: tuple[str, str] | None
) -> None:
    path = tmp_path / "run.seqtop"
    arrived = msgspec.structs.replace(arrival(1), traceparent=traceparent)
    record(path, (engine_info(), arrived, step(0)))
    with FileStore(path) as recording:
        (line,) = otlp.encode(read_runs(recording))
    root, *_ = decoded(line)
    found = (root.trace_id.hex(), root.parent_span_id.hex())
    assert found == (parent or (found[0], ""))
