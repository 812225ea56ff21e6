"""Errors that the openai client recognises."""

import openai
import pytest

from tests.support.http_engine import MODEL, Served


def test_openai_client_recognises_the_errors(served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as too_long:
        served.client.completions.create(model=MODEL, prompt=[5] * 1024)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        served.client.completions.create(model="other", prompt="x")
    assert unknown.value.code == "model_not_found"
