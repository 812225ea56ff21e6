"""The causes of misses of the prefix cache in words."""

from seqtop.wire.messages import MissCause

MISS_LABELS: dict[MissCause, str] = {
    "new_tokens": "new",
    "evicted": "evicted",
    "not_stored": "not stored yet",
    "extra_keys": "other adapter or salt",
    "broken_prefix": "behind missing ones",
    "partial_block": "at the prompt's end",
    "not_cacheable": "not cacheable",
    "unknown": "unknown",
}
"""The causes in a few words."""
