"""The description of an engine, read from its scheduler."""

from types import SimpleNamespace

from seqtop.adapters.vllm.engine_description import describe
from seqtop.transport.publisher_settings import PublisherSettings
from tests.support.fake_vllm import BLOCK_SIZE, Scheduler


def group(kind: str, block_size: int) -> SimpleNamespace:
    return SimpleNamespace(kv_cache_spec=type(kind, (), {"block_size": block_size})())


def test_figures_are_those_of_the_scheduler(modules: SimpleNamespace) -> None:
    started, layout = describe(Scheduler(num_gpu_blocks=17), PublisherSettings(bind="ipc:///e"))
    assert started.num_gpu_blocks == 17
    assert started.block_size == BLOCK_SIZE
    assert started.max_num_seqs == 4
    assert started.groups == []
    assert layout == (0, False)


def test_the_order_by_priority_is_that_of_its_version(modules: SimpleNamespace) -> None:
    scheduler, settings = Scheduler(), PublisherSettings(bind="ipc:///e")
    assert describe(scheduler, settings)[0].policy == "fcfs"
    scheduler.scheduler_config.policy = "priority"
    assert describe(scheduler, settings)[0].policy == "priority"
    del scheduler.kv_holding_waiting  # as in 0.30
    assert describe(scheduler, settings)[0].policy == "priority_alone"
    scheduler.scheduler_config.policy = "fcfs"
    assert describe(scheduler, settings)[0].policy == "fcfs"


def test_the_bytes_of_a_block_are_those_in_all_tensors_if_a_version_tells_them(
    modules: SimpleNamespace,
) -> None:
    settings = PublisherSettings(bind="ipc:///e")
    scheduler = Scheduler(num_gpu_blocks=17)
    assert describe(scheduler, settings)[0].bytes_per_block is None
    scheduler.kv_cache_config.kv_cache_tensors = [SimpleNamespace(size=17 * 64)] * 2
    scheduler.kv_cache_config.num_blocks = 17
    assert describe(scheduler, settings)[0].bytes_per_block == 128


def test_the_first_group_that_only_grows_is_the_main_one(modules: SimpleNamespace) -> None:
    scheduler = Scheduler()
    scheduler.kv_cache_config.kv_cache_groups[:] = [
        group("SlidingWindowSpec", 8),
        group("FullAttentionSpec", 32),
    ]
    started, layout = describe(scheduler, PublisherSettings(bind="ipc:///e", engine_id="mine"))
    assert layout.main_group == 1
    assert layout.whole_tables, "blocks outside the window are freed"
    assert started.block_size == 32
    assert started.groups == ["FullAttentionSpec", "SlidingWindowSpec"]
    assert started.engine_id == "mine"


def test_the_tokenizer_can_be_set_or_left_out(modules: SimpleNamespace) -> None:
    def of(tokenizer: str) -> str | None:
        settings = PublisherSettings(bind="ipc:///e", tokenizer=tokenizer)
        return describe(Scheduler(), settings)[0].tokenizer

    assert of("other/tokenizer") == "other/tokenizer"
    assert of("") is None
