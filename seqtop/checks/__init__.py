"""Checks of an engine: rules that hold at every step and for every workload.

Each rule looks only at the changes of one event, so checking costs a small multiple of applying.
Rules that need token ids are not checked where a stream is redacted.
"""

from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.checks.rules import RULES, Rule
from seqtop.checks.thresholds import ThresholdError, Thresholds

__all__ = ["RULES", "Checker", "Finding", "Rule", "ThresholdError", "Thresholds"]
