"""The report of real runs: its figures, its texts, and the page in a real browser."""

import html
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from seqtop.cli.main import main
from seqtop.demo import DemoEngine
from seqtop.diff.comparison import RunComparison, compare
from seqtop.diff.run import RunDecisions
from seqtop.export.report import charts, contents, page
from seqtop.export.report.contents import Contents
from seqtop.history import FileStore
from seqtop.sequence import RequestMetrics, SequenceStatus, latency
from seqtop.state.slo import Slo
from seqtop.wire.messages import RequestFinished
from tests.support import field_cases
from tests.support.broken_recordings import BROKEN, NO_STEP, record
from tests.support.browsing import a_page
from tests.support.events import arrival, engine_info, stats, step, update
from tests.support.waiting import SECONDS

_VOID = {"meta", "br"}


class _Page(HTMLParser):
    """Reads a page, and fails if its elements are not nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def read(path: Path, slo: Slo | None = None) -> Contents:
    with FileStore(path) as recording:
        return contents.read(recording, slo or Slo())


def written(
    *recordings: Contents, with_text: bool = False, comparison: RunComparison | None = None
) -> str:
    text = "".join(page.write(recordings, with_text=with_text, comparison=comparison))
    _Page(text)
    return text


def shown(text: str) -> str:
    """The words of a page."""
    return html.unescape(re.sub(r"<[^>]*>", " ", text))


@pytest.fixture(scope="module")
def run(recorded: Path) -> Contents:
    return read(recorded, Slo(e2e=1e6))


def test_samples_are_those_of_the_metrics(run: Contents) -> None:
    samples, lifecycles = run.samples(), run.lifecycles
    served = [it for it in lifecycles if it.request.finish_reason in ("stop", "length")]
    assert samples["e2e"] == sorted(latency.e2e_latency(it.request.metrics) for it in served)
    assert (run.num_met, len(served)) == (5, 5)
    assert run.outcomes() == {"length": 5, "abort": 1, "unfinished": 1}
    spans = [
        it.request.metrics.last_token_time - it.request.metrics.first_token_time
        for it in lifecycles
        if it.request.metrics.first_token_time is not None
    ]
    assert math.isclose(sum(samples["itl"]), sum(spans), rel_tol=1e-6)
    assert run.slowest[0].seconds == samples["e2e"][-1]
    limits = run.limits()
    assert sum(share.num_steps for share in limits) == len(run.steps)
    assert {"no free blocks", "nothing waits"} <= {share.label for share in limits}
    preempted = sum(it.request.num_preemptions for it in lifecycles)
    assert len(run.preemptions) == preempted > 0


def test_no_interval_has_more_blocks_than_the_pool(run: Contents) -> None:
    assert run.info is not None
    held = [it.gauges["used"] + it.gauges["cached"] for it in run.intervals if it.gauges]
    assert 0 < max(held) <= run.info.num_gpu_blocks


def test_a_page_has_no_text_unless_it_is_asked_for(run: Contents) -> None:
    plain, whole = written(run), written(run, with_text=True)
    for words in ("Once upon a time", "HYPERLINK"):
        assert words not in plain
        assert words in whole
    assert "\x1b" not in whole
    words = shown(plain)
    for preemption in run.preemptions[: contents.MAX_PREEMPTIONS]:
        assert preemption.text in words
    assert "steps were checked. No rule was broken." in words
    assert "5 of 5 met E2E" in words


def test_a_page_begins_with_the_verdict_and_folds_the_settings(run: Contents) -> None:
    text = written(run)
    assert '<meta name="viewport" content="width=device-width">' in text
    body = text.split("</h1>")[1]
    assert body.index('class="verdict"') < body.index('class="tiles"')
    assert "<h" not in body.split('class="verdict"')[0]
    settings = text[text.index("<details><summary><h2>Engine and settings") :]
    assert "max_num_seqs" in settings.split("</details>")[0]
    assert text.count("<table") == text.count('<div class="scroll"><table') > 3


def test_nothing_from_a_recording_is_markup(tmp_path: Path) -> None:
    evil = '"><script>alert(1)</script><img src="http://example.org/">'
    request = msgspec.structs.replace(arrival(1), request_id=evil)
    info = engine_info(model=evil, scheduler_settings={evil: evil}, not_available={evil: evil})
    path = tmp_path / "run.seqtop"
    record(path, (info, request, step(0), step(1)))
    text = "".join(page.write([read(path)], with_text=True))
    parsed = _Page(text)
    assert not {"script", "img", "link", "iframe"} & {*parsed.tags}
    assert not {"src", "href", "onload"} & {name for name, _ in parsed.attributes}
    assert evil in shown(text)


def test_two_recordings_have_one_axis_and_their_differences(
    recorded: Path, run: Contents, tmp_path: Path
) -> None:
    path = tmp_path / "other.seqtop"
    record(path, (engine_info(max_num_seqs=77), arrival(1), *map(step, range(3))))
    other = read(path)
    with FileStore(recorded) as one, FileStore(path) as two:
        comparison = compare(RunDecisions(one), RunDecisions(two))
    text = written(run, other, comparison=comparison)
    assert "run.seqtop and other.seqtop" in text
    assert '<body class="two">' in text
    assert '<body class="one">' in written(other)
    assert "A: run.seqtop" in shown(text)
    words = shown(text)
    assert "because " in words.split("Engine and settings")[0]
    assert words.index("because ") < words.index("In the recording"), "the verdict is first"
    assert '<td class="number worse">-' in text
    assert "E2E, p50" not in words, "the requests that had not ended would not count"
    row = next(row for row in text.split("<tr") if "<th>max_num_seqs</th>" in row)
    assert "differs" in row
    assert "<details open><summary><h2>Engine and settings" in text, "they differ"
    assert "<td>4</td><td>77</td>" in row
    row = next(row for row in text.split("<tr") if "<th>Recorded time</th>" in row)
    steps = re.findall(r"(\d+) steps", row)
    assert steps == [str(len(run.steps)), "3"]
    charts = re.findall(r'aria-label="Sequences">.*?</svg>', text)
    ends = [re.findall(r">([^<]+)</text>", chart)[-1] for chart in charts]
    assert len(ends) == 2
    assert ends[0] == ends[1]


def test_of_many_requests_those_around_the_slowest_are_rows(
    run: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = r"<g><title>([^<]*): \d+ prompt"
    assert len(re.findall(rows, written(run))) == 7
    monkeypatch.setattr(page, "MAX_ROWS", 6)
    monkeypatch.setattr(page, "ROWS_AROUND", 3)
    text = written(run)
    slowest = run.slowest[0].lifecycle.request.request_id
    names = [html.unescape(name) for name in re.findall(rows, text)]
    assert len(names) == 3
    assert slowest in names
    assert f"3 of 7 requests: those that arrived around {slowest}, the slowest." in shown(text)


_ENDLESS = step(1, start_time=-1e308, time=math.inf, stats=stats(num_used_blocks=2**62))
_NO_NUMBER = step(2, start_time=math.nan, time=math.nan, stats=stats(scheduler_time=math.nan))


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        (NO_STEP, "The recording has no step."),
        (BROKEN, "request req-1 arrived twice"),
        ((engine_info(), arrival(1), step(0), _ENDLESS, _NO_NUMBER, step(3)), "4 steps"),
        ((engine_info(predicted_from="a.seqtop"), step(0)), "A PREDICTION by seqtop whatif"),
        (
            (engine_info(), arrival(1), step(0, sequences=[update(1, tokens=[5])])),
            "Unknown for all requests.",
        ),
        (
            (
                engine_info(),
                arrival(1),
                step(0, sequences=[update(1, SequenceStatus.RUNNING)]),
            ),
            "No request finished.",
        ),
        (
            (
                engine_info(),
                arrival(1),
                step(0, sequences=[update(1, is_removed=True)]),
                RequestFinished(
                    request_id="req-1",
                    time=1.0,
                    status=SequenceStatus.FINISHED_STOPPED,
                    metrics=RequestMetrics(0.0, 0.0, None, None, None),
                ),
            ),
            "1 step",
        ),
    ],
)
def test_odd_recordings(events: tuple[object, ...], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    record(path, events)  # type: ignore[arg-type]
    text = written(read(path))
    assert sentence in shown(text)
    assert not re.search(r'="[^"]*\b(nan|inf)\b[^"]*"', text)


def test_a_long_recording_is_checked_in_part(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MAX_CHECKED", 20)
    run = read(recorded)
    assert 0 < run.findings.num_steps < 20
    sentence = f"The first {run.findings.num_steps} of {len(run.steps)} steps were checked;"
    assert sentence in shown(written(run))


@pytest.mark.release("needs a browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_browser_shows_it_without_network_or_errors(
    scheme: str, number: int, recorded: Path, run: Contents, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    with FileStore(recorded) as recording:
        decisions = RunDecisions(recording)
    comparison = compare(decisions, decisions) if number > 1 else None
    path.write_text(written(*[run] * number, comparison=comparison), encoding="utf-8")
    with a_page() as browser:
        requests, errors = [], []
        browser.on("request", lambda request: requests.append(request.url))
        browser.on("console", lambda message: errors.append(message.text))
        browser.emulate_media(color_scheme=scheme)
        browser.goto(path.as_uri())
        boxes = browser.eval_on_selector_all(
            "svg", "all => all.map(svg => [svg.clientWidth, svg.clientHeight])"
        )
        background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        widths = []
        for width in (1200, 360):
            browser.set_viewport_size({"width": width, "height": 700})
            widths.append(browser.evaluate("document.documentElement.scrollWidth"))
    assert (requests, errors) == ([path.as_uri()], [])
    assert len(boxes) >= number * 12
    assert all(width > 50 and height > 5 for width, height in boxes)
    assert background == {"light": "rgb(247, 248, 249)", "dark": "rgb(17, 22, 28)"}[scheme]
    assert widths[0] <= 1200
    assert widths[1] <= 360, "on a telephone only tables and charts scroll, in their own boxes"


@pytest.mark.release("needs a browser")
def test_the_report_of_the_demo_in_a_browser(tmp_path: Path) -> None:
    recording, path = tmp_path / "demo.seqtop", tmp_path / "report.html"
    with DemoEngine(model=None, device="cpu", pace=0) as engine:
        command = ["record", engine.endpoint, "-o", str(recording), "--duration", "5"]
        assert main([*command, "--timeout", str(SECONDS)]) == 0
    assert main(["report", str(recording), "-o", str(path)]) == 0
    run = read(recording)
    assert run.preemptions
    with a_page() as browser:
        browser.goto(path.as_uri())
        words = browser.inner_text("body")
        sizes = browser.eval_on_selector_all(
            "svg", "all => all.map(svg => [svg.clientWidth, svg.clientHeight])"
        )
    assert all(width > 50 and height > 5 for width, height in sizes)
    assert run.preemptions[0].text in words
    for name in ("KV-cache blocks", "Distributions", "What limited the batches", "max_num_seqs"):
        assert name in words


def test_the_highest_bar_of_a_histogram_is_as_high_as_its_plot() -> None:
    drawn = charts.histogram([1.0, 1.0, 5.0], (1.0, 10.0), [], "latency", str, height=70)
    assert re.findall(r"v(-[\d.]+)h", drawn) == ["-70", "-35"]


def test_groups_have_the_sums_of_the_run_and_the_blocks_of_its_fullest_moment(
    recorded: Path, run: Contents, tmp_path: Path
) -> None:
    table = run.groups
    assert table.key == "prefix"
    assert sum(group.num_requests for group in table.groups) == len(run.lifecycles)
    assert sum(group.num_output_tokens for group in table.groups) == sum(
        len(sequence.output_token_ids) for it in run.lifecycles for sequence in it.sequences
    )
    assert table.num_used_blocks == max(step.stats.num_used_blocks for step in run.steps)
    assert sum(group.num_blocks for group in table.groups) >= table.num_used_blocks
    assert f"after step {table.step:,}, when most blocks were in use" in shown(written(run))
    output = tmp_path / "report.html"
    command = ["report", str(recorded), "-o", str(output), "--force", "--by"]
    assert main([*command, "re:/[0-9]$/"]) == 0
    assert "Groups by re:/[0-9]$/" in shown(output.read_text())
    assert main([*command, "status"]) == 2


def test_the_longest_wait_without_an_end_is_listed_first(tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    record(path, tuple(field_cases.ended_requests_keep_blocks(60)))
    read_ = read(path)
    first = read_.unfinished[0]
    assert first.lifecycle.request.request_id == "n0"
    assert first.seconds > 1
    assert "blocks" in first.parts[0]
    text = shown(written(read_))
    assert "The requests without an end that have waited longest" in text
