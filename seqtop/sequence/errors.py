"""The exceptions of the data model."""


class SequenceError(AssertionError, ValueError):
    """A value, a call or a delta that contradicts the sequence data model.

    It is an `AssertionError`, as engines written for vLLM expect where vLLM asserts. It is a
    `ValueError`, so that msgspec's decoder names the field of the invalid value. It is raised under
    ``python -O`` too.
    """


class ParameterError(ValueError):
    """An error that a request's parameter has a value that cannot be used.

    Args:
        parameter: The name of the parameter.
        message: A sentence that names it.
    """

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(message)
        self.parameter = parameter
