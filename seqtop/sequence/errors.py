"""The one exception the data model raises for a broken rule."""


class SequenceError(AssertionError, ValueError):
    """A value, a call or a delta that contradicts the sequence data model.

    It is an `AssertionError` because that is what engines written against vLLM expect where vLLM
    asserts, and a `ValueError` because these rules hold under ``python -O`` too and because a
    decoder can then name the field in which the offending value arrived.
    """
