"""The misses in words, as text and as JSON, of runs that are written by hand."""

from typing import Any

import msgspec
import pytest

from seqtop.misses.cache_misses import CacheMisses, Lookup, Needed, Totals
from seqtop.misses.nearest_prefix import PrefixDifference
from seqtop.misses.report import as_json, as_text, describe, limits, worst
from seqtop.wire.messages import PrefixMiss
from tests.support.scripted_cache import ScriptedCache, missed

DIFFERENCE = PrefixDifference("req-7", 1_234, 5, 6, "once upon", " a time", " a tree")
START = "The nearest cached prefix, of req-7, differs from token 1,234 on"


def lookup(
    *misses: PrefixMiss,
    reused: dict[int, int] | None = None,
    needed: list[tuple[int, int]] | None = None,
    is_again: bool = False,
    difference: PrefixDifference | None = None,
    num_tokens: int = 2_000,
    num_hit_tokens: int = 1_016,
) -> Lookup:
    """Returns an admission; `reused` has the blocks that were taken since an eviction, by miss."""
    return Lookup(
        number=1,
        position=9,
        step=1_500,
        time=10.0,
        request_id="req-1",
        seq_id=1,
        num_tokens=num_tokens,
        num_hit_tokens=num_hit_tokens,
        misses=misses,
        reused_after=[(reused or {}).get(index) for index in range(len(misses))],
        needed=[Needed(*own) for own in needed or []],
        is_again=is_again,
        difference=difference,
    )


@pytest.mark.parametrize(
    ("admission", "sentences"),
    [
        (lookup(), []),
        (lookup(missed("new_tokens", 1)), ["Missed: 1 token new."]),
        (
            lookup(missed("not_stored", 1_600, 3, "req-0"), missed("partial_block", 8)),
            ["Missed: 1,600 tokens not stored yet (req-0); 8 tokens at the prompt's end."],
        ),
        (
            lookup(
                missed("evicted", 16),
                missed("evicted", 32, 1_400),
                missed("evicted", 48, 1_450, "req-3"),
                reused={0: 0, 1: 1, 2: 1_090},
            ),
            [
                (
                    "Missed: 16 tokens evicted, reused 0 blocks later; 32 tokens evicted at step"
                    " 1,400, reused 1 block later; 48 tokens evicted at step 1,450 to make room"
                    " for req-3, reused 1,090 blocks later."
                )
            ],
        ),
        (
            lookup(*[missed("new_tokens", 16)] * 3, missed("partial_block", 1_000)),
            ["Missed: 16 tokens new; 16 tokens new; 16 tokens new; 1,000 more."],
        ),
        (
            lookup(*[missed("new_tokens", 16)] * 4, missed("partial_block", 2)),
            ["Missed: 16 tokens new; 16 tokens new; 16 tokens new; 18 more."],
        ),
        (
            lookup(needed=[(1, 5), (2, 10), (3, 400), (4, 5)]),
            ["A larger pool would have had 1 block (+5%), 2 blocks (+10%), 3 blocks (+400%)."],
        ),
        (
            lookup(difference=DIFFERENCE),
            [f"{START}: after “once upon” comes “ a time” here, “ a tree” there."],
        ),
        (
            lookup(difference=DIFFERENCE._replace(text="")),
            [f"{START}: after “once upon” comes the end here, “ a tree” there."],
        ),
        *(
            (
                lookup(difference=DIFFERENCE._replace(**{field: None})),
                [f"{START}: its id is 5 here, 6 there; the text is not known."],
            )
            for field in ("before", "text", "other_text")
        ),
    ],
)
def test_an_admission_in_sentences(admission: Lookup, sentences: list[str]) -> None:
    first = "1,016 of 2,000 tokens found in the prefix cache at step 1,500."
    assert describe(admission, with_text=True) == [first, *sentences]
    if admission.difference is not None:
        sentences = [f"{START}."]
    assert describe(admission, with_text=False) == [first, *sentences]


def test_an_admission_after_a_preemption_was_recomputed() -> None:
    again = lookup(is_again=True, num_tokens=1, num_hit_tokens=0)
    assert describe(again, with_text=False) == [
        "0 of 1 token found in the prefix cache when it was recomputed at step 1,500."
    ]


def totals(
    num_new: int = 0,
    num_larger: int = 0,
    num_unexplained: int = 0,
    num_differing: int = 0,
    needed: int = 0,
) -> Totals:
    """Returns sums of 1,500 blocks; `needed` would have been found by one size."""
    return Totals(
        10, 1_500, 500, 0, num_new, num_larger, num_unexplained, num_differing, {},
        [0, needed, *[0] * 11],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sums", "fields", "sentences"),
    [
        (totals(), {}, []),
        (totals(num_larger=5, needed=5), {}, []),
        (
            totals(num_new=1),
            {},
            ["100% of the missed blocks had never been stored: no pool finds them."],
        ),
        (
            totals(num_new=30, num_larger=10, needed=60),
            {},
            ["30% of the missed blocks had never been stored: no pool finds them."],
        ),
        (
            totals(num_new=1, num_unexplained=1),
            {},
            [
                "50% of the missed blocks had never been stored: no pool finds them.",
                "Of 1 missed block no size is known; they count as missed by all pools.",
            ],
        ),
        (
            totals(num_unexplained=2),
            {"starts_late": True},
            [
                (
                    "Of 2 missed blocks no size is known: they were stored before the first"
                    " recorded step; they count as missed by all pools."
                )
            ],
        ),
        (
            totals(num_differing=1),
            {},
            ["The repeated pool differs from the recorded one in 1 of 1,500 looked-up blocks."],
        ),
        (
            totals(),
            {"rate": 0.125},
            ["Estimated from 0.125 of all blocks, sampled by their hashes."],
        ),
        (
            totals(num_new=1),
            {"num_impossible": 1, "reason": "It is blind."},
            ["1 admission left out, with impossible numbers of tokens.", "It is blind."],
        ),
        (
            totals(),
            {"num_impossible": 2},
            ["2 admissions left out, with impossible numbers of tokens."],
        ),
    ],
)
def test_facts_that_the_misses_do_not_say(
    sums: Totals, fields: dict[str, object], sentences: list[str]
) -> None:
    misses = CacheMisses()
    misses.reason = ""
    for name, value in fields.items():
        setattr(misses, name, value)
    assert limits(misses, sums) == sentences


def test_the_eight_admissions_with_the_most_evicted_tokens_are_listed() -> None:
    """Of equal ones, the newest first."""
    misses = CacheMisses()
    evicted = [0, 16, 32, 16, 64, 16, 16, 16, 128, 16, 16, 16]
    for number, tokens in enumerate(evicted):
        parts = [missed("new_tokens", 999), missed("evicted", tokens - tokens // 2)]
        parts.append(missed("evicted", tokens // 2))
        misses.lookups.append(lookup(*parts)._replace(number=number))
    assert [own.number for own in worst(misses)] == [8, 4, 2, 11, 10, 9, 7, 6]
    misses.lookups.clear()
    misses.lookups.append(lookup(missed("new_tokens", 16)))
    assert worst(misses) == []


def scripted() -> CacheMisses:
    """One block of the second request, and two of the third, were evicted."""
    cache = ScriptedCache(num_gpu_blocks=20)
    cache.arrive("a", [*range(41)])
    cache.step(cache.admit("a", [*range(11)], missed("new_tokens", 40), missed("partial_block", 1)))
    cache.step(cache.end("a"))
    cache.arrive("b", [99] * 71)
    cache.step(cache.admit("b", [*range(19, 1, -1)], missed("new_tokens", 71)))
    cache.step(cache.end("b"))
    cache.arrive("c", [*range(16), 50, 51, 52, 53])
    gone = missed("evicted", 8, 2, "b"), missed("partial_block", 4)
    cache.step(cache.admit("c", [0, 1, 18, 17, 16], *gone, cached=8))
    preemption, update = cache.preempt("c")
    cache.step(update, preemptions=[preemption])
    gone = missed("evicted", 4, 4), missed("partial_block", 4)
    cache.step(cache.admit("c", [0, 1, 2, 3, 4], *gone, cached=12))
    return cache.misses


def one_admission(cached: int = 0, num_tokens: int = 1, **info: Any) -> CacheMisses:
    cache = ScriptedCache(**info)
    cache.arrive("a", [*range(cached + 1)])
    end = missed("partial_block", 1)
    cache.step(cache.admit("a", [0, 1, 2], end, cached=cached, num_tokens=num_tokens))
    return cache.misses


TEXT = """\
4 admissions looked up 35 full blocks of 4 tokens: 14% found, 30 missed, 1 of them after preemptions

tokens  share  missed since
   111    84%  new: no request had had them
    12   9.1%  evicted: their blocks were taken for other requests
     9   6.8%  at the prompt's end: always computed, since they fill no block

 more  blocks  missed  removed
as is      20      29
  +5%      21      28     3.4%
 +10%      22      27     6.9%
 +20%      24      27     6.9%
 +30%      26      27     6.9%
 +50%      30      27     6.9%
+100%      40      27     6.9%
+200%      60      27     6.9%
+400%     100      27     6.9%

93% of the missed blocks had never been stored: no pool finds them.
The repeated pool differs from the recorded one in 1 of 35 looked-up blocks.
The schedule is that of the recording; `seqtop whatif` runs the scheduler, too.

the most evicted tokens:
"""


def test_the_text_of_a_run() -> None:
    misses = scripted()
    listed = [f"  c: {' '.join(describe(own, with_text=False))}" for own in worst(misses)]
    assert as_text(misses, with_text=False).splitlines() == [*TEXT.splitlines(), *listed]
    assert len(listed) == 2


@pytest.mark.parametrize(
    ("misses", "lines"),
    [
        (
            CacheMisses(),
            [
                "No admission with a lookup in the prefix cache.",
                "",
                "The engine has not described itself.",
            ],
        ),
        (
            one_admission(),
            [
                "1 admission",
                "",
                "tokens  share  missed since",
                "     1   100%  at the prompt's end: always computed, since they fill no block",
                "",
                "The schedule is that of the recording; `seqtop whatif` runs the scheduler, too.",
            ],
        ),
        (
            one_admission(cached=8, num_tokens=0),
            [
                "1 admission looked up 2 full blocks of 4 tokens: 100% found, 0 missed",
                "",
                "tokens  share  missed since",
                "     1   100%  at the prompt's end: always computed, since they fill no block",
                "",
                "The repeated pool differs from the recorded one in 2 of 2 looked-up blocks.",
                "The schedule is that of the recording; `seqtop whatif` runs the scheduler, too.",
            ],
        ),
        (
            one_admission(enable_prefix_caching=False),
            [
                "1 admission",
                "",
                "tokens  share  missed since",
                "     1   100%  at the prompt's end: always computed, since they fill no block",
                "",
                "Prefix caching is off.",
            ],
        ),
    ],
    ids=["nothing", "no block", "all found", "no curve"],
)
def test_the_text_without_misses(misses: CacheMisses, lines: list[str]) -> None:
    assert as_text(misses, with_text=True).splitlines() == lines


def test_the_json_of_a_run() -> None:
    misses = scripted()
    document = msgspec.json.decode(as_json(misses, with_text=True))
    curve, lookups = document.pop("curve"), document.pop("lookups")
    assert document == {
        "num_lookups": 4,
        "block_size": 4,
        "num_blocks": 35,
        "num_hit_blocks": 5,
        "num_missed_blocks": 30,
        "num_missed_again": 1,
        "num_missed_new": 27,
        "num_unexplained": 0,
        "num_differing": 1,
        "num_missed_tokens": {"new_tokens": 111, "evicted": 12, "partial_block": 9},
        "no_curve": None,
        "sample_rate": 1.0,
    }
    assert [point["num_missed_blocks"] for point in curve] == [29, 28, *[27] * 12]
    assert curve[1] == {"percent": 5, "num_gpu_blocks": 21, "num_missed_blocks": 28}
    assert [own["request_id"] for own in lookups] == ["c", "c", "b", "a"]
    assert lookups[1] == {
        "step": 4,
        "time": 104.5,
        "request_id": "c",
        "seq_id": 3,
        "num_tokens": 20,
        "num_hit_tokens": 8,
        "misses": [
            {
                "cause": "evicted",
                "num_tokens": 8,
                "step": 2,
                "request_id": "b",
                "reused_after_blocks": 0,
            },
            {
                "cause": "partial_block",
                "num_tokens": 4,
                "step": None,
                "request_id": None,
                "reused_after_blocks": None,
            },
        ],
        "needed": [{"num_blocks": 1, "percent": 5}, {"num_blocks": 1, "percent": 10}],
        "is_again": False,
        "difference": None,
    }


@pytest.mark.parametrize("with_text", [False, True])
def test_the_json_of_a_difference_has_texts_if_they_are_wanted(with_text: bool) -> None:
    misses = CacheMisses()
    misses.lookups.append(lookup(difference=DIFFERENCE))
    document = msgspec.json.decode(as_json(misses, with_text=with_text))
    assert document["no_curve"] == "The engine has not described itself."
    assert document["lookups"][0]["difference"] == {
        "request_id": "req-7",
        "position": 1_234,
        "token_id": 5 if with_text else None,
        "other_token_id": 6 if with_text else None,
        "before": "once upon" if with_text else None,
        "text": " a time" if with_text else None,
        "other_text": " a tree" if with_text else None,
    }
