"""Groups of requests as plain text, JSON and CSV (`seqtop show --by`)."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import msgspec

from seqtop.export.csv_rows import cell
from seqtop.state.groups import Group
from seqtop.text import format as fmt
from seqtop.text.sanitize import indented_json
from seqtop.text.tables import plain, table

TITLES = (
    *("Requests", "Running", "Waiting", "Blocks", "KV", "Prompt", "Out", "Pre", "Waited"),
    *("TTFT p50", "Harm"),
)


def as_text(groups: Sequence[Group], key: str, num_used_blocks: int | None) -> str:
    """Returns a line of titles and a line per group.

    Args:
        groups: The groups.
        key: What they are grouped by.
        num_used_blocks: The blocks in any table, of which *KV* is the share; `None` if unknown.
    """
    rows = [(group.name or "(none)", *cells(group, num_used_blocks)) for group in groups]
    return plain(table([(key, *TITLES), *rows], left=(0,)))


class GroupsDocument(msgspec.Struct):
    """Groups of requests, as JSON."""

    by: str
    """The key."""
    num_used_blocks: int | None
    """Blocks in any table; `None` if unknown."""
    groups: Sequence[Group]


def as_json(groups: Sequence[Group], key: str, num_used_blocks: int | None) -> str:
    """Returns the same as a JSON document."""
    return indented_json(GroupsDocument(key, num_used_blocks, groups))


def as_csv(groups: Sequence[Group], key: str) -> str:
    """Returns the same as CSV, with the names of JSON and the key as the title of the names."""
    names = [field.name for field in msgspec.structs.fields(Group)]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([cell(key), *names[1:]])
    writer.writerows([cell(getattr(group, name)) for name in names] for group in groups)
    return file.getvalue().removesuffix("\n")


def cells(group: Group, num_used_blocks: int | None) -> tuple[str, ...]:
    """Returns the figures of a group as text, in the order of `TITLES`."""
    share = fmt.percent(group.num_blocks, num_used_blocks) if num_used_blocks else ""
    numbers = (
        *(group.num_requests, group.num_running, group.num_waiting, group.num_blocks),
        *(group.num_prompt_tokens, group.num_output_tokens, group.num_preemptions),
    )
    texts = [f"{number:,}" for number in numbers]
    ttft = fmt.UNKNOWN if group.ttft_seconds is None else fmt.seconds(group.ttft_seconds)
    return (
        *texts[:4],
        share,
        *texts[4:],
        fmt.seconds(group.waited_seconds),
        ttft,
        fmt.seconds(group.harm_seconds),
    )
