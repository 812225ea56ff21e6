"""The classes of the fake vLLM have the methods, arguments and attributes of the real ones."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import vllm
from stepping import make_core
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from tests.support import fake_vllm

pytestmark = pytest.mark.skipif(
    vllm.__version__ != fake_vllm.VERSION, reason=f"the fake stands for {fake_vllm.VERSION}"
)
REAL = (Request, FCFSRequestQueue, BlockPool, KVCacheManager, Scheduler, AsyncScheduler)


def methods(of: type) -> dict[str, Any]:
    """The names that a class of the fake defines, but its constructor and those only for tests."""
    own = fake_vllm.OWN[of]
    return {
        name: value
        for name, value in vars(of).items()
        if name not in own and not name.startswith("__")
    }


def arguments(method: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(method).parameters)


CASES = [
    pytest.param(getattr(fake_vllm, real.__name__), real, name, id=f"{real.__name__}.{name}")
    for real in REAL
    for name in methods(getattr(fake_vllm, real.__name__))
]


@pytest.mark.parametrize(("fake", "real", "name"), CASES)
def test_method_takes_the_arguments_of_the_real_one(fake: type, real: type, name: str) -> None:
    if isinstance(vars(fake)[name], property):
        return
    given, expected = (arguments(getattr(owner, name)) for owner in (fake, real))
    common = [argument for argument in expected if argument in given]
    assert list(given) == common, "in this order, and no others"
    for argument, parameter in expected.items():
        is_optional = parameter.default is not inspect.Parameter.empty
        assert argument in given or is_optional or parameter.kind in (2, 4), argument
        if argument in given:
            assert given[argument].kind is parameter.kind
            fake_optional = given[argument].default is not inspect.Parameter.empty
            assert fake_optional is is_optional, argument


def test_instances_have_the_attributes_of_the_real_ones() -> None:
    core = make_core(async_scheduling=True)
    try:
        real = core.scheduler
        fake = fake_vllm.AsyncScheduler()
        pairs: list[tuple[Any, Any]] = [
            (fake, real),
            (fake.kv_cache_manager, real.kv_cache_manager),
            (fake.pool, real.kv_cache_manager.block_pool),
            (fake.waiting, real.waiting),
        ]
        for one, other in pairs:
            own = set().union(*(fake_vllm.OWN.get(base, set()) for base in type(one).__mro__))
            assert {name for name in vars(one) if not hasattr(other, name)} <= own
    finally:
        core.shutdown()


def test_statuses_are_those_of_the_real_ones() -> None:
    assert {*fake_vllm.RequestStatus.__members__} <= {*RequestStatus.__members__}
    assert {*fake_vllm.PauseState.__members__} <= {*PauseState.__members__}
    for status in fake_vllm.RequestStatus:
        real = RequestStatus[status.name]
        assert fake_vllm.RequestStatus.is_finished(status) is RequestStatus.is_finished(real)
