"""Parquet files of a recording of the bundled engine, read by DuckDB."""

import json
import math
import re
from collections import Counter, defaultdict
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import seqtop
from seqtop.cli.main import main
from seqtop.history import FileStore
from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.wire.messages import EngineInfo, Event, RequestFinished
from tests.support.broken_recordings import record
from tests.support.events import arrival, engine_info, stats, step, update
from tests.support.greedy_runs import NUM_REQUESTS, record_run

duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

QUERIES = re.findall(r"```sql\n(.*?)```", Path("docs/queries.md").read_text(), re.DOTALL)


class Tables:
    """The tables of a recording in DuckDB."""

    def __init__(self, recording: Path, directory: Path, *options: str) -> None:
        arguments = ["export", str(recording), "--parquet", "-o", str(directory), *options]
        assert main(arguments) == 0
        self._connection = duckdb.connect()
        self._connection.execute(f"set file_search_path = '{directory}'")

    def rows(self, query: str) -> list[dict[str, Any]]:
        found = self._connection.execute(query)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


@pytest.fixture(scope="module")
def tables(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(recorded, tmp_path_factory.mktemp("parquet") / "run")


@pytest.fixture
def requests(recorded: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The requests in the JSON document of the recording's state."""
    assert main(["show", str(recorded), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["requests"]


def test_times_and_texts_are_those_of_the_json_document(
    tables: Tables, requests: list[dict[str, Any]]
) -> None:
    rows = {row["request_id"]: row for row in tables.rows("from 'requests.parquet'")}
    sequences = {row["seq_id"]: row for row in tables.rows("from 'sequences.parquet'")}
    assert rows.keys() >= {request["request_id"] for request in requests}
    for request in requests:
        row, metrics = rows[request["request_id"]], request["metrics"]
        assert (row["prompt"], row["prompt_token_ids"]) == (
            request["prompt"],
            request["prompt_token_ids"],
        )
        for name in ("arrival_time", "first_scheduled_time", "first_token_time", "finished_time"):
            found = row[f"{name}_ns"]
            assert (None if found is None else found / 10**9) == metrics[name]
        for sequence in request["sequences"]:
            found = sequences[sequence["seq_id"]]
            names = ("text", "status", "block_table", "output_token_ids", "num_prompt_hits")
            assert {name: found[name] for name in names} == {name: sequence[name] for name in names}
            tokens = tables.rows(
                f"from 'tokens.parquet' where seq_id = {sequence['seq_id']} order by position"
            )
            assert [token["token_id"] for token in tokens] == sequence["output_token_ids"]


def test_queries_of_the_document_give_what_the_json_document_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.seqtop"
    record_run(path)
    slowest, by_length, causes, preemptions, pauses = map(
        Tables(path, tmp_path / "run").rows, QUERIES[:5]
    )
    capsys.readouterr()
    assert main(["show", str(path), "--json"]) == 0
    requests = json.loads(capsys.readouterr().out)["requests"]
    assert len(requests) == NUM_REQUESTS

    by_latency = sorted(requests, key=lambda one: -one["latency"]["e2e_seconds"])[:10]
    assert [row["request_id"] for row in slowest] == [one["request_id"] for one in by_latency]
    for row, request in zip(slowest, by_latency, strict=True):
        assert close(row["e2e_latency"], request["latency"]["e2e_seconds"])
        assert close(row["waiting"], request["wait"]["total_seconds"])
        assert close(row["model_execute"], request["metrics"]["model_execute_time"])
        assert row["num_preemptions"] == request["num_preemptions"]

    lengths: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for request in requests:
        lengths[int(math.log2(request["num_prompt_tokens"]))].append(request)
    assert [row["log2_prompt_tokens"] for row in by_length] == sorted(lengths)
    for row in by_length:
        group = lengths[row["log2_prompt_tokens"]]
        ttfts = sorted(request["latency"]["ttft_seconds"] for request in group)
        hits = sum(request["sequences"][0]["num_prompt_hits"] for request in group)
        assert row["num_requests"] == len(group)
        assert close(row["share_of_hits"], hits / sum(one["num_prompt_tokens"] for one in group))
        assert close(row["ttft_p50"], ttfts[math.ceil(0.5 * len(group)) - 1])
        assert close(row["ttft_p95"], ttfts[math.ceil(0.95 * len(group)) - 1])

    seconds: Counter[str] = Counter()
    for request in requests:
        seconds.update(request["wait"]["seconds_by_cause"])
    assert {row["cause"]: row["seconds"] for row in causes} == pytest.approx(dict(seconds))

    lost: Counter[str] = Counter()
    for row in preemptions:
        lost[row["victim"]] += row["num_lost_tokens"]
    assert lost == {
        one["request_id"]: one["num_lost_tokens"] for one in requests if one["num_preemptions"]
    }
    assert lost

    gaps: list[float] = []
    newest: dict[str, float] = {}
    with seqtop.open(path) as recording:
        for _, state in recording.states():
            for request_id, request in state.requests.items():
                time = request.metrics.last_token_time
                if request.metrics.first_token_time is None or time is None:
                    continue
                if time > newest.setdefault(request_id, time):
                    gaps.append(time - newest[request_id])
                    newest[request_id] = time
    assert [row["gap"] for row in pauses] == pytest.approx(sorted(gaps, reverse=True)[:10])
    assert all(row["gap"] > row["model_execute"] > 0 for row in pauses)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of three recordings: of two engines, one of them on two days."""
    folder = tmp_path_factory.mktemp("archive")
    for name, day, num_blocks in (("good", 0, 400), ("good", 1, 400), ("full/1", 0, 24)):
        path = folder / f"{day}.seqtop"

        def change(event: Event, name: str = name, day: int = day) -> Event:
            if isinstance(event, EngineInfo):
                event.engine_id, event.incarnation = name, f"{name}-{day}"
                event.start_time += 86_400 * day
            return event

        record_run(path, change, num_gpu_blocks=num_blocks)
        export = ["export", str(path), "--parquet", "--partitioned", "-o", str(folder / "archive")]
        assert main(export) == 0
        assert main(export) == 1, "it has been added"
        assert main([*export, "--force"]) == 0
        path.unlink()
    return folder / "archive"


def test_many_recordings_are_read_together_by_date_and_engine(archive: Path) -> None:
    connection = duckdb.connect()
    connection.execute(f"set file_search_path = '{archive}'")
    connection.execute((archive / "views.sql").read_text())
    counts = connection.execute(
        "select engine, date, count(*) from requests group by all"
    ).fetchall()
    assert sorted(name for name, _, _ in counts) == ["full/1", "good", "good"]
    assert {count for _, _, count in counts} == {NUM_REQUESTS}
    rows = connection.execute("select distinct engine_id, engine from tokens").fetchall()
    assert all(one == other for one, other in rows)
    (missing,) = connection.execute(QUERIES[5]).fetchall()
    engine, _, num_requests, share_met, _, main_cause, seconds = missing
    assert (engine, num_requests, main_cause) == ("full/1", NUM_REQUESTS, "no_blocks")
    assert 0 <= share_met < 0.99
    assert seconds > 0
    lost = connection.execute(QUERIES[6]).fetchall()
    assert lost[0][0] == "full/1"
    assert [row[3] for row in lost[1:]] == [0, 0]


def test_a_longer_recording_of_a_run_replaces_its_files(tmp_path: Path) -> None:
    """A recording that begins before its engine described itself has the engine's first name."""
    from seqtop.export import parquet

    events: tuple[Event, ...] = (engine_info(), engine_info(engine_id="other"), step(0))
    for count in (1, 2, 3):
        path = tmp_path / f"{count}.seqtop"
        record(path, events[:count])
        with FileStore(path) as recording:
            parquet.write(
                tmp_path / "all", recording, redact=False, overwrite=True, partitioned=True
            )
        (file,) = (tmp_path / "all" / "steps").rglob("*.parquet")
        assert file.parent.name == "engine=test"


def test_the_report_of_the_tables_of_many_recordings(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow
    from pyarrow import parquet

    page = tmp_path / "page.html"
    assert main(["report", str(archive), "-o", str(page), "--slo", "ttft=500ms"]) == 0
    rows = re.findall(r"<tr><td>.*?</tr>", page.read_text())
    cells = [[re.sub(r"<.*?>", "", cell) for cell in row.split("</td>")[:-1]] for row in rows]
    assert [row[1] for row in cells] == ["full/1", "good", "good"], "the worst first"
    assert {row[4] for row in cells} == {str(NUM_REQUESTS)}
    assert float(cells[0][6].rstrip("%")) < 99 <= float(cells[1][6].rstrip("%"))
    assert cells[0][-1].endswith("no free blocks")
    broken = next(archive.glob("requests/date=*/engine=good/*.parquet"))
    kept = broken.read_bytes()
    broken.write_bytes(b"PAR1")
    assert main(["report", str(archive), "-o", str(page), "--force"]) == 0
    assert "it cannot be read" in page.read_text()
    table = parquet.read_table(BytesIO(kept), partitioning=None)
    unknown = pyarrow.nulls(table.num_rows, table.schema.field("arrival_time_ns").type)
    position = table.column_names.index("arrival_time_ns")
    parquet.write_table(table.set_column(position, "arrival_time_ns", unknown), broken)
    assert main(["report", str(archive), "-o", str(page), "--force"]) == 0
    assert "it cannot be read" not in page.read_text()
    broken.write_bytes(kept)
    assert "1 recording could not be read" in capsys.readouterr().err


def test_other_readers_of_hive_partitions_read_the_same_columns(archive: Path) -> None:
    from pyarrow import dataset

    table = dataset.dataset(archive / "requests", partitioning="hive").to_table()
    assert table.num_rows == 3 * NUM_REQUESTS
    assert {*table["engine"].to_pylist()} == {"good", "full/1"}
    assert len({*table["date"].to_pylist()}) == 2


def close(one: float, other: float) -> bool:
    return math.isclose(one, other, abs_tol=1e-6)


def test_redacted_values_are_unknown(recorded: Path, tmp_path: Path) -> None:
    tables = Tables(recorded, tmp_path / "run", "--redact")
    for table, names in (
        ("requests", ("prompt", "prompt_token_ids")),
        ("sequences", ("text", "output_token_ids", "cumulative_logprob")),
        ("tokens", ("token_id", "logprob")),
    ):
        counts = ", ".join(f"count({name}) as {name}" for name in names)
        (row,) = tables.rows(f"select {counts} from '{table}.parquet'")
        assert row == dict.fromkeys(names, 0)


def test_figures_that_make_no_sense_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    many = stats(num_used_blocks=2**64 - 1, scheduler_time=math.nan)
    strange = step(1, start_time=-1e308, time=math.inf, stats=many)
    block = update(1, blocks=[2**40, 3], tokens=[7], logprobs=[math.nan])
    record(path, (engine_info(), arrival(1), step(0, sequences=[block]), strange))
    tables = Tables(path, tmp_path / "run")
    (row,) = tables.rows("from 'steps.parquet' where step = 1")
    assert not {row[name] for name in ("start_time_ns", "end_time_ns", "num_used_blocks")} - {None}
    assert row["scheduler_ns"] is None
    (row,) = tables.rows("from 'sequences.parquet'")
    assert row["block_table"] == [None, 3]


def test_each_of_several_tokens_of_a_step_has_its_position(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.seqtop"
    steps = (
        step(0, sequences=[update(1, tokens=[7], logprobs=[-0.5])]),
        step(1, sequences=[update(1, tokens=[8, 9], logprobs=[-0.25])]),
    )
    record(path, (engine_info(), arrival(1), *steps))
    tables = Tables(path, tmp_path / "run")
    tokens = tables.rows("select position, step, token_id, logprob from 'tokens.parquet'")
    assert [(*row.values(),) for row in tokens] == [
        (0, 0, 7, -0.5),
        (1, 1, 8, -0.25),
        (2, 1, 9, None),
    ]
    assert "1 request, 1 sequence, 2 steps, 3 tokens" in capsys.readouterr().err


def test_the_end_of_a_request_has_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    metrics = RequestMetrics(1.0, 1.0, None, None, None, 101.0)
    end = RequestFinished("req-1", 101.0, SequenceStatus.FINISHED_LENGTH_CAPPED, metrics)
    record(path, (engine_info(), arrival(1), step(0), end))
    rows = Tables(path, tmp_path / "run").rows("from 'events.parquet' where kind = 'finished'")
    assert [(row["request_id"], row["cause"], row["time_ns"]) for row in rows] == [
        ("req-1", "length", 101 * 10**9)
    ]


def test_rows_are_written_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow import parquet as pq

    from seqtop.export import parquet

    path = tmp_path / "run.seqtop"
    record(path, (engine_info(), *map(step, range(5))))
    for size, num_groups in ((2**16, 1), (3, 2)):
        monkeypatch.setattr(parquet, "_ROWS", size)
        with FileStore(path) as recording:
            parquet.write(tmp_path / "run", recording, redact=False, overwrite=True)
        file = pq.ParquetFile(tmp_path / "run" / "steps.parquet")
        assert (file.metadata.num_rows, file.num_row_groups) == (5, num_groups)


def test_files_are_replaced_together_and_only_if_asked(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokens.parquet").write_text("old")
    arguments = ["export", str(recorded), "--parquet", "-o", str(tmp_path)]
    assert main(arguments) == 1
    assert f"{tmp_path / 'tokens.parquet'} exists already" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokens.parquet"]
    assert main([*arguments, "--force"]) == 0
    assert len(list(tmp_path.iterdir())) == 5
    assert main(["export", str(recorded), "--parquet"]) == 2
    assert "name a directory with -o" in capsys.readouterr().err
