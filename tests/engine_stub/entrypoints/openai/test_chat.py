"""Conversations are put to the bundled model as it was trained."""

import json
import shutil
from pathlib import Path

import openai
import pytest
from transformers import AutoTokenizer

from engine_stub.config import DEFAULT_MODEL
from engine_stub.processing.tokenizer import Tokenizer
from tests.support.checkpoints import make_checkpoint
from tests.support.http_engine import CHAT, MODEL, Served, serve
from tests.support.waiting import wait_until

TOKENIZER = Tokenizer(DEFAULT_MODEL)


def test_chat_is_put_as_the_model_was_trained(served: Served) -> None:
    answer = served.client.chat.completions.create(
        model=MODEL, messages=CHAT, stop="###", max_completion_tokens=5
    )
    wait_until(lambda: served.request(answer.id))
    request = served.request(answer.id)
    assert request is not None
    assert request.prompt == (
        "<|begin|>You are a kind storyteller.\n\nUser: Tell me a story about a fox.\nBot:"
    )
    assert request.prompt_token_ids == TOKENIZER.encode(request.prompt.removeprefix("<|begin|>"))
    assert request.sampling_params is not None
    assert request.sampling_params.stop == ["###", "\nUser:"]
    assert request.sampling_params.max_tokens == 5


def test_chat_follows_the_models_own_template(tmp_path: Path) -> None:
    path = make_checkpoint("qwen3", tmp_path / "my-qwen")
    (path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<eos>",
                "chat_template": "{% for message in messages %}{% if message.role == 'system' %}"
                "{{ raise_exception('no rules here') }}{% endif %}"
                "[{{ message.role }}] {{ message.content }}{{ eos_token }}{% endfor %}"
                "{% if thinking %}hm {% endif %}",
            }
        )
    )
    theirs = AutoTokenizer.from_pretrained(path)
    with serve("--model", str(path)) as running:
        create = running.client.chat.completions.create
        answer = create(
            model="my-qwen",
            messages=CHAT[1:],
            max_tokens=3,
            extra_body={"chat_template_kwargs": {"thinking": True}},
        )
        wait_until(lambda: running.request(answer.id))
        request = running.request(answer.id)
        assert request is not None
        assert request.prompt == "[user] Tell me a story about a fox.<eos>hm "
        expected = theirs.apply_chat_template(CHAT[1:], thinking=True, return_dict=False)
        assert request.prompt_token_ids == expected
        assert answer.usage.prompt_tokens == len(expected)
        with pytest.raises(openai.BadRequestError, match="no rules here"):
            create(model="my-qwen", messages=CHAT)


@pytest.mark.release("another start of an engine")
def test_chat_is_refused_for_models_without_a_template(tmp_path: Path) -> None:
    without = shutil.ignore_patterns("*.jinja")
    shutil.copytree(DEFAULT_MODEL, tmp_path / "my-llama", ignore=without)
    with serve("--model", str(tmp_path / "my-llama")) as running:
        assert [model.id for model in running.client.models.list()] == ["my-llama"]
        with pytest.raises(openai.BadRequestError, match="no chat template; use /v1/completions"):
            running.client.chat.completions.create(model="my-llama", messages=CHAT)
        answer = running.client.completions.create(model="my-llama", prompt="x", max_tokens=2)
        assert answer.choices[0].text
