"""The figures of an engine in Prometheus' text format."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.openai.metrics import EngineMetrics, Histogram
from seqtop.sequence import PoolingParams
from tests.support.http_engine import ENDLESS, GREEDY, HTTP, MODEL, Served
from tests.support.running import Clock, MakeEngine, greedy
from tests.support.waiting import wait_until

LABEL = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"(vllm:[a-z0-9_]+)\{{({LABEL}(?:,{LABEL})*)\}} ([0-9.e+-]+)")
COMMON = f'engine="0",model_name="{MODEL}"'


def read(text: str) -> dict[str, float]:
    """The samples by name and labels, of a text in which each one belongs to the type before it."""
    samples: dict[str, float] = {}
    kind = family = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name == family
            assert name.endswith("_total") == (kind == "counter")
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels, value = match.groups()
            suffixes = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
            assert name in {family + suffix for suffix in suffixes}
            key = f"{name}{{{labels}}}"
            assert key not in samples
            samples[key] = float(value)
    assert text.endswith("\n")
    return samples


class Figures:
    """The samples of one model, by their names without the prefix and the common labels."""

    def __init__(self, text: str) -> None:
        self._samples = read(text)

    def __call__(self, name: str, label: str = "") -> float:
        return self._samples[f"vllm:{name}{{{COMMON}{label and ','}{label}}}"]


def steps(engine: LLMEngine, metrics: EngineMetrics) -> Iterator[Figures]:
    """Yields the figures after each step of an engine."""
    while engine.has_unfinished_requests():
        metrics.stepped(engine.step())
        yield Figures(metrics.text(MODEL))


def scrape(served: Served) -> Figures:
    response = HTTP.get(f"{served.url}/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Figures(response.text)


def idle(served: Served) -> Figures:
    """The figures when the requests of the tests before have ended."""
    wait_until(lambda: not scrape(served)("num_requests_running"))
    return scrape(served)


def ended(figures: Figures) -> dict[str, float]:
    return {
        reason: figures("request_success_total", f'finished_reason="{reason}"')
        for reason in ("stop", "length", "abort", "error")
    }


def test_a_request_adds_to_the_figures(served: Served) -> None:
    before = idle(served)
    served.client.completions.create(
        prompt=[40, 41, 42], n=2, extra_body={"ignore_eos": True}, **GREEDY | {"temperature": 1}
    )
    after = scrape(served)
    added = {
        name: after(name) - before(name)
        for name in (
            *("prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total"),
            *("time_to_first_token_seconds_count", "inter_token_latency_seconds_count"),
            *("e2e_request_latency_seconds_count", "request_queue_time_seconds_count"),
        )
    }
    assert added == {
        "prompt_tokens_total": 6,
        "generation_tokens_total": 48,
        "prefix_cache_queries_total": 6,
        "time_to_first_token_seconds_count": 2,
        "inter_token_latency_seconds_count": 46,
        "e2e_request_latency_seconds_count": 2,
        "request_queue_time_seconds_count": 2,
    }
    assert ended(after)["length"] - ended(before)["length"] == 2
    assert after("num_requests_running") == after("kv_cache_usage_perc") == 0


def test_running_requests_that_the_client_aborts(served: Served) -> None:
    before = idle(served)
    stream = served.client.completions.create(prompt="A river", stream=True, n=2, **ENDLESS)
    next(stream)
    during = scrape(served)
    assert during("num_requests_running") == 2
    assert 0 < during("kv_cache_usage_perc") < 1
    stream.close()
    after = idle(served)
    assert ended(after)["abort"] - ended(before)["abort"] == 2
    assert after("e2e_request_latency_seconds_count") == before("e2e_request_latency_seconds_count")


def test_an_engine_that_has_made_no_step() -> None:
    samples = read(EngineMetrics().text('a "model"\\\n'))
    assert r'vllm:num_requests_running{engine="0",model_name="a \"model\"\\\n"}' in samples
    assert set(samples.values()) == {0.0}


def test_times_are_counted_by_their_bounds(make_engine: MakeEngine) -> None:
    """The clock is read twice in a step: at its beginning, and at its end."""
    engine, metrics = make_engine(clock=Clock()), EngineMetrics()
    engine.add_request("r", [1, 2, 3], greedy(3))  # at 1001
    *_, figures = steps(engine, metrics)
    assert figures("time_to_first_token_seconds_sum") == 2.0  # at 1003
    assert figures("inter_token_latency_seconds_sum") == 4.0  # at 1005, at 1007
    assert figures("e2e_request_latency_seconds_sum") == 6.0
    assert figures("request_queue_time_seconds_sum") == 1.0
    assert figures("time_to_first_token_seconds_bucket", 'le="1.0"') == 0
    assert figures("time_to_first_token_seconds_bucket", 'le="2.5"') == 1
    assert figures("inter_token_latency_seconds_bucket", 'le="+Inf"') == 2
    assert figures("request_queue_time_seconds_bucket", 'le="1.0"') == 1  # a bound is included
    assert figures("request_queue_time_seconds_bucket", 'le="0.8"') == 0


def test_buckets_contain_those_below_them() -> None:
    histogram = Histogram("h", "A histogram.", (1.0, 2.0))
    histogram.observe(0.5, 3)
    histogram.observe(1.5)
    histogram.observe(9.0)
    histogram.observe(-1.0)  # the clock was set back
    assert list(histogram.samples()) == [
        ("_bucket", 'le="1.0"', 4),
        ("_bucket", 'le="2.0"', 5),
        ("_bucket", 'le="+Inf"', 6),
        ("_count", "", 6),
        ("_sum", "", 12.0),
    ]


def test_waiting_and_preempted_requests(make_engine: MakeEngine) -> None:
    engine, metrics = make_engine(num_gpu_blocks=8, max_num_seqs=2), EngineMetrics()
    for index in range(3):
        engine.add_request(f"r{index}", [1 + index] * 12, greedy(8))
    all_figures = list(steps(engine, metrics))
    assert all_figures[0]("num_requests_running") == 2
    assert all_figures[0]("num_requests_waiting") == 1
    assert all_figures[0]("kv_cache_usage_perc") == 6 / 8
    last = all_figures[-1]
    assert last("num_preemptions_total") > 0
    # What is computed again is not counted again.
    assert last("prompt_tokens_total") == 36
    assert last("generation_tokens_total") == 24
    assert last("time_to_first_token_seconds_count") == 3
    assert last("inter_token_latency_seconds_count") == 21


def test_swapped_requests(make_engine: MakeEngine) -> None:
    engine = make_engine(num_gpu_blocks=8, num_cpu_blocks=8, preemption_mode="swap")
    for index in range(2):
        engine.add_request(f"r{index}", [1 + index] * 12, greedy(8))
    assert 1.0 in [figures("num_requests_swapped") for figures in steps(engine, EngineMetrics())]


def test_hits_of_the_prefix_cache(make_engine: MakeEngine) -> None:
    engine, metrics = make_engine(enable_prefix_caching=True), EngineMetrics()
    for _ in range(2):
        engine.add_request("r", list(range(1, 10)), greedy(1))
        *_, figures = steps(engine, metrics)
    assert figures("prefix_cache_queries_total") == 18
    assert figures("prefix_cache_hits_total") == 8


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (greedy(2), "length"),
        (PoolingParams(), "stop"),
        (BeamSearchParams(beam_width=3, max_tokens=4, ignore_eos=True), "length"),
    ],
)
def test_requests_of_each_kind(make_engine: MakeEngine, params: Any, reason: str) -> None:
    engine, metrics = make_engine(), EngineMetrics()
    engine.add_request("r", [1, 2, 3], params)
    *_, figures = steps(engine, metrics)
    assert ended(figures)[reason] == sum(ended(figures).values()) == 1
    assert figures("prompt_tokens_total") == 3
    assert figures("e2e_request_latency_seconds_count") == 1


def test_requests_that_end_between_steps(make_engine: MakeEngine) -> None:
    engine, metrics = make_engine(max_model_len=16), EngineMetrics()
    engine.add_request("long", [1] * 20, greedy(2))
    engine.add_request("aborted", [1, 2, 3], greedy(2))
    engine.abort_request("aborted")
    *_, figures = steps(engine, metrics)
    assert ended(figures) == {"stop": 0, "length": 1, "abort": 1, "error": 0}
    assert figures("e2e_request_latency_seconds_count") == 0


def test_a_request_that_fails(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, metrics = make_engine(), EngineMetrics()

    def fail(*_: object) -> None:
        raise OverflowError

    monkeypatch.setattr(engine.output_processor.detokenizer, "append", fail)
    engine.add_request("r", [1, 2, 3], greedy(2))
    *_, figures = steps(engine, metrics)
    assert ended(figures) == {"stop": 0, "length": 0, "abort": 0, "error": 1}
    assert figures("e2e_request_latency_seconds_count") == 0


def test_an_error_of_counting_does_not_reach_the_engine(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, metrics = make_engine(), EngineMetrics()

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(metrics, "_count_tokens", fail)
    engine.add_request("r", [1, 2, 3], greedy(1))
    list(steps(engine, metrics))
    assert not engine.has_unfinished_requests()
