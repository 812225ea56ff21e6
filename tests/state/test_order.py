"""Rows that stand still and rows that grow, read as one order, against sorting them all."""

import random

import pytest

from seqtop.state.order import Entry, Order


def any_entry(row: int, chance: random.Random) -> tuple[Entry | None, bool]:
    """A place among few, so that there are ties; `None` to stand nowhere."""
    kind = chance.choice(["nowhere", "still", "still", "growing", "growing", "unknown"])
    number = float(chance.randrange(6))
    if kind == "nowhere":
        return None, False
    return ((1, row) if kind == "unknown" else (0, number, row)), kind == "growing"


@pytest.mark.parametrize("seed", range(20))
def test_an_order_is_what_sorting_gives(seed: int) -> None:
    chance = random.Random(seed)
    order, some = Order(), Order()
    entries: dict[int, tuple[Entry, bool]] = {}

    def at_present(row: int) -> Entry:
        entry, grows = entries[row]
        return (0, entry[1] + order.shift, *entry[2:]) if grows else entry

    for _ in range(120):
        row = chance.randrange(25)
        entry, grows = any_entry(row, chance)
        order.put(row, entry, grows=grows)
        is_among_some = entry is not None and chance.random() < 0.5
        some.put(row, entry if is_among_some else None, grows=grows and is_among_some)
        entries.pop(row, None)
        if entry is not None:
            entries[row] = entry, grows
        if chance.random() < 0.3:
            order.shift = some.shift = float(chance.randrange(-5, 5))
        wanted = sorted(entries, key=at_present)
        start, stop = chance.randrange(30), chance.randrange(30)
        assert order.page(0, len(order)) == wanted
        assert order.page(start, stop) == wanted[start:stop]
        assert [order.index(row) for row in wanted] == list(range(len(wanted)))
        assert [some.place(row, order) for row in wanted] == [
            sum(other in some for other in wanted[:index]) for index in range(len(wanted))
        ]
        again = Order()
        again.shift = order.shift
        again.load(order.entry(row) for row in entries)
        assert again.page(0, len(again)) == wanted
