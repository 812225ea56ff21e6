"""Chat templates: transformers' own rendering of the same files, and what the sandbox refuses."""

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest
from transformers import AutoTokenizer

from engine_stub.config import DEFAULT_MODEL
from engine_stub.model_executor.model_config import MAX_BYTES
from engine_stub.processing.chat_template import ChatTemplate, ChatTemplateError
from engine_stub.processing.template_process import MAX_MEMORY
from engine_stub.processing.tokenizer import Tokenizer

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <kind> & brief.\n"},
    {"role": "user", "content": "Tell me a story about a fox."},
    {"role": "assistant", "content": "Once upon a time."},
    {"role": "user", "content": "And then? <|end|>"},
]
WITH_EVERYTHING = """
{%- set seen = namespace(count=0) %}
{{- bos_token }}{{ dict(a=1) | tojson }}
{%- for message in messages %}
    {%- if loop.index0 == 2 %}{% continue %}{% endif %}
    {%- set seen.count = seen.count + 1 %}
    {%- generation %}{{ '[' + message['role'] + ']' + message.content | tojson }}{% endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}{{ seen.count ~ eos_token }}{% endif %}
{%- if not tools and thinking is defined %}{{ thinking }}{% endif %}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEFAULT_MODEL / name, tmp_path)
    return tmp_path


def assert_as_transformers(path: Path, **variables: Any) -> None:
    theirs = AutoTokenizer.from_pretrained(path)
    template = ChatTemplate.from_pretrained(path)
    text = template.render(MESSAGES, **variables)
    settings = {"add_generation_prompt": True} | variables
    assert text == theirs.apply_chat_template(MESSAGES, tokenize=False, **settings)
    ids = theirs.apply_chat_template(MESSAGES, return_dict=False, **settings)
    assert Tokenizer(path).encode_with_special_tokens(text) == ids


def test_bundled_template() -> None:
    assert_as_transformers(DEFAULT_MODEL)
    template = ChatTemplate.from_pretrained(DEFAULT_MODEL)
    assert template.render(MESSAGES) == (
        "<|begin|>Be <kind> & brief.\n\n\nUser: Tell me a story about a fox.\n"
        "Bot: Once upon a time.\nUser: And then? <|end|>\nBot:"
    )


def test_template_in_a_file_of_its_own(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text(WITH_EVERYTHING)
    assert_as_transformers(directory, thinking="hm")
    assert_as_transformers(directory, add_generation_prompt=False)


@pytest.mark.parametrize(
    "given",
    [WITH_EVERYTHING, [{"name": "default", "template": WITH_EVERYTHING}]],
    ids=["one", "several"],
)
def test_template_in_the_tokenizers_config(directory: Path, given: Any) -> None:
    file = directory / "tokenizer_config.json"
    config = json.loads(file.read_text())
    eos = {"__type": "AddedToken", "content": "<|end|>", "special": True, "normalized": False}
    config |= {"chat_template": given, "eos_token": eos}
    file.write_text(json.dumps(config))
    assert_as_transformers(directory)


def test_no_template(directory: Path) -> None:
    assert ChatTemplate.from_pretrained(directory) is None
    (directory / "tokenizer_config.json").unlink()
    assert ChatTemplate.from_pretrained(directory) is None


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
    ],
)
def test_templates_that_refuse_or_fail(source: str, words: str) -> None:
    with pytest.raises(ChatTemplateError, match=words):
        ChatTemplate(source, {}).render([*MESSAGES])


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('a' * 10 ** 8) }}",
        "{{ messages['a' * 10 ** 7].b }}",
        "{{ undefined[('a' * 10 ** 7)] + 1 }}",
        "{% include 'a' * 10 ** 7 %}",
        "{% " + "a" * 10**6 + " %}",
    ],
    ids=range(5),
)
def test_error_of_a_template_is_bounded(source: str) -> None:
    before = psutil.Process().memory_info().rss
    with pytest.raises(ChatTemplateError, match=r"(?s)^.{20,1100}$"):
        ChatTemplate(source, {}).render([*MESSAGES])
    assert psutil.Process().memory_info().rss - before < 20 * 2**20


def test_a_template_that_cannot_be_read(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("a\n{% for %}")
    with pytest.raises(ChatTemplateError, match="line 2"):
        ChatTemplate.from_pretrained(directory)
    (directory / "chat_template.jinja").unlink()
    (directory / "tokenizer_config.json").write_text("{")
    with pytest.raises(ChatTemplateError, match=r"tokenizer_config\.json is not valid"):
        ChatTemplate.from_pretrained(directory)


@pytest.mark.parametrize(
    "expression",
    [
        "{{ 'x' * 10 ** 11 }}",
        "{{ messages | tojson(indent=999999999) }}",
        "{{ 'x'.center(10 ** 11) }}",
        "{{ '%999999999999d' % 1 }}",
        "{% set x = 'x' * 10000 %}{% for i in range(99999) %}{{ x ~ i }}{% endfor %}",
    ],
)
def test_a_template_that_takes_too_much_memory(expression: str) -> None:
    before = max_memory_of_children()
    with pytest.raises(ChatTemplateError, match=r"memory|MemoryError|OverflowError|longer than"):
        ChatTemplate("{% if 1 %}" + expression + "{% endif %}", {}).render([*MESSAGES])
    # The memory was that of another process, which has a limit. Other tests have larger ones.
    assert max_memory_of_children() < max(2 * MAX_MEMORY, before + 1)


def max_memory_of_children() -> int:
    """Returns the bytes of the largest process that this one has waited for."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def test_a_template_that_never_ends_is_ended_and_the_next_prompt_rendered() -> None:
    template = ChatTemplate(
        "{% if endless %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
        "{% endfor %}{% endif %}{{ messages[0].role }}",
        {},
    )
    with pytest.raises(ChatTemplateError, match="too much time or memory"):
        template.render(MESSAGES, endless=True)
    assert template.render(MESSAGES) == "system"


def test_variables_with_any_name_and_depth() -> None:
    template = ChatTemplate("{{ messages[0].role }}{{ self }}{{ source }}", {})
    assert template.render(MESSAGES, self="s", source="t").startswith("system")
    with pytest.raises(ChatTemplateError, match="messages is no further variable"):
        template.render(MESSAGES, messages=[])
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ChatTemplateError, match="nested too deeply"):
        template.render(MESSAGES, deep=deep)


def test_files_that_are_too_large(directory: Path) -> None:
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        with (directory / name).open("wb") as file:
            file.truncate(MAX_BYTES + 1)
        with pytest.raises(ChatTemplateError, match=f"{name}.* larger than {MAX_BYTES} bytes"):
            ChatTemplate.from_pretrained(directory)
