"""Checks of an engine: rules that hold at every step and for every workload.

Each rule looks only at the changes of one event, so checking costs a small multiple of applying.
Rules that need token ids are not checked where a stream is redacted.
"""
