"""The exception for violations of the data model."""


class SequenceError(AssertionError, ValueError):
    """A value, a call or a delta that contradicts the sequence data model.

    It is an `AssertionError`, as engines written for vLLM expect where vLLM asserts. It is a
    `ValueError`, so that msgspec's decoder names the field of the invalid value. It is raised under
    ``python -O`` too.
    """
