"""The rules of the scheduler that a file of one's own can change: order and victim."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Sequence
from typing import assert_never

from engine_stub.config import EngineConfig
from seqtop.sequence import SequenceGroup

_number_of_file = itertools.count()


class SchedulingPolicy:
    """The order in which groups are served, and the choice of the group that is preempted.

    A subclass in a file of its own changes one or both: `engine-stub serve --policy FILE.py` runs
    with it, `seqtop whatif --policy FILE.py` predicts a recorded run with it, and `seqtop advise
    --policies DIR` compares several.

    Args:
        config: The engine's settings.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    def rank(self, seq_group: SequenceGroup) -> tuple[float, ...]:
        """Returns the sort key of a group: the smallest is admitted first, and preempted last.

        It is asked for once, when the group arrives. Of equal groups, the earlier one is first.
        """
        return (seq_group.priority,)

    def victim(
        self, behind: Sequence[SequenceGroup], num_blocks: Callable[[SequenceGroup], int]
    ) -> SequenceGroup:
        """Returns the running group that is preempted, since one before it needs a block.

        Args:
            behind: The running groups that rank behind the one in need, in order; one or more.
                None of them has been scheduled in this step.
            num_blocks: Returns the number of blocks that a group holds, shared ones included.
        """
        match self.config.preemption_victim:
            case "last":
                return behind[-1]
            case "largest":
                return max(reversed(behind), key=num_blocks)
            case other:
                assert_never(other)


def load_policy(path: str) -> type[SchedulingPolicy]:
    """Returns the policy of a Python file: the one subclass of `SchedulingPolicy` in it.

    The file runs with the rights of the engine, so that its path may come from the user only, and
    never from a recording.

    Raises:
        ValueError: The file cannot be read, fails, or has no policy or several.
    """
    name = f"seqtop_policy_{next(_number_of_file)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"the policy {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except OSError as error:
        raise ValueError(f"the policy {path} cannot be read: {error.strerror}") from error
    except Exception as error:
        kind = type(error).__name__
        raise ValueError(f"the policy {path} cannot be loaded: {kind}: {error}") from error
    policies = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, SchedulingPolicy)
        and value.__module__ == name
    ]
    if len(policies) != 1:
        raise ValueError(
            f"the policy {path} has {len(policies)} subclasses of SchedulingPolicy, not one"
        )
    return policies[0]
