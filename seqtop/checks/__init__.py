"""A sanitizer for schedulers: what must hold of an engine at every step, whatever it is running.

Each rule looks only at what an event changed, so checking costs no more than a small multiple of
applying. Rules that need token ids are silent where a stream is redacted.
"""

from seqtop.checks.checker import Checker
from seqtop.checks.finding import RULES, Finding

__all__ = ["RULES", "Checker", "Finding"]
