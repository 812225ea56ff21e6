"""Hypothesis strategies of requests and sequences with any values."""

from hypothesis import strategies as st

from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import RequestState, SequenceState, Span

TIMES = st.none() | st.floats() | st.floats(99, 111)
COUNTS = st.integers(-10, 10_000) | st.integers(-(2**63), 2**64 - 1)
METRICS = st.builds(
    RequestMetrics,
    st.floats(),
    st.floats(),
    *[TIMES] * 7,
)
REQUESTS = st.builds(
    RequestState,
    request_id=st.text(),
    metrics=METRICS,
    seq_ids=st.lists(st.integers(0, 5), unique=True),
    num_prompt_tokens=COUNTS,
    prompt=st.none() | st.text(),
    priority=COUNTS,
    num_preemptions=COUNTS,
    spans=st.lists(
        st.builds(
            Span,
            st.sampled_from(["queued", "prefill", "decode", "preempted", "swapped"]),
            st.floats(),
            TIMES,
            COUNTS,
            COUNTS,
        )
    ),
)
SEQUENCES = st.builds(
    SequenceState,
    seq_id=st.integers(0, 5) | COUNTS,
    request_id=st.text(),
    status=st.sampled_from(SequenceStatus),
    num_prompt_tokens=COUNTS,
    num_computed_tokens=COUNTS,
    num_cached_tokens=COUNTS,
    output_token_ids=st.lists(COUNTS),
    text=st.text(),
    last_delta_length=COUNTS,
    block_table=st.lists(COUNTS),
)
