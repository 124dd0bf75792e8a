"""What may be set beside the messages of a chat."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from mlxgen import Chat, OptionError, Vocabulary
from mlxgen.chat.template.format import ChatFormat
from tests.fakes import byte_level_tokenizer

from .families import families

HELLO = [{"role": "user", "content": "Hi"}]
PARAMETERS = [
    *inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters,
    "messages",
]
OTHERS = ["eos_token", "range", "namespace", "raise_exception", "strftime_now", "not a name", ""]


def of_template(template: str, *, thinks: bool = False) -> Vocabulary:
    wrapper = byte_level_tokenizer()
    if thinks:
        wrapper._tokenizer.add_tokens(["<think>", "</think>"])
        wrapper = type(wrapper)(wrapper._tokenizer, eos_token_ids=wrapper.eos_token_ids)
    wrapper.chat_template = template
    return Vocabulary.of(wrapper)


EVERYTHING = of_template("".join(f"{{{{ {name} }}}}" for name in (*PARAMETERS, *OTHERS[:5])) + "x")


@pytest.mark.parametrize("name", [*PARAMETERS, *OTHERS])
def test_arguments_of_transformers_are_not_variables(name: str) -> None:
    with pytest.raises(OptionError, match=r"^template: .* is not a variable to set"):
        Chat(HELLO, template={name: 1}).tokens(EVERYTHING)


@pytest.mark.parametrize(
    "template",
    [
        "x{{ mood }}",
        "x{% if mood is defined %}{{ mood }}{% endif %}",
        "x{% if mood is not defined %}{% set mood = 'bad' %}{% endif %}{{ mood }}",
        "x{% set mood = mood | default('bad') %}{{ mood }}",
        "x{% set mood = mood or 'bad' %}{{ mood }}",
        "x{% macro f() %}{{ mood }}{% endmacro %}{{ f() }}",
        "x{% for a in [1] %}{{ mood if mood }}{% endfor %}",
    ],
)
def test_variables_are_found_however_they_are_used(template: str) -> None:
    vocabulary = of_template(template)
    assert "mood" in ChatFormat.of(vocabulary).variables
    ids = Chat(HELLO, template={"mood": "good"}).tokens(vocabulary)
    assert vocabulary.decode(ids) == "xgood"


def test_a_variable_that_is_not_used_is_refused_with_those_that_are() -> None:
    vocabulary = of_template("{{ mood }}{{ time }}x")
    with pytest.raises(OptionError, match="does not use mod; those of this model are mood, time"):
        Chat(HELLO, template={"mod": 1}).tokens(vocabulary)
    with pytest.raises(OptionError, match="does not use mod; there are none"):
        Chat(HELLO, template={"mod": 1}).tokens(of_template("x"))


def test_what_a_template_sets_for_itself_is_not_listed() -> None:
    vocabulary = of_template(
        "x{% for m in messages %}{% if m %}{% set text = m.content %}{{ text }}{% endif %}"
        "{% endfor %}"
        "{% if mood is not defined %}{% set mood = 1 %}{% endif %}{{ mood }}"
    )
    with pytest.raises(OptionError, match=r"those of this model are mood$"):
        Chat(HELLO, template={"mod": 1}).tokens(vocabulary)


def test_templates_for_tools_have_variables_of_their_own() -> None:
    wrapper = byte_level_tokenizer()
    wrapper._tokenizer.chat_template = {"default": "x{{ a }}", "tool_use": "y{{ b }}"}
    vocabulary = Vocabulary.of(wrapper)
    tool = {"type": "function", "function": {"name": "f"}}
    assert vocabulary.decode(Chat(HELLO, template={"a": 1}).tokens(vocabulary)) == "x1"
    with_tools = Chat(HELLO, tools=[tool], template={"b": 2})
    assert vocabulary.decode(with_tools.tokens(vocabulary)) == "y2"
    with pytest.raises(OptionError, match="those of this model are b"):
        Chat(HELLO, tools=[tool], template={"a": 1}).tokens(vocabulary)


def test_the_switch_for_thinking_is_heard_or_need_not_be() -> None:
    """Many clients send it to every model."""

    def text(vocabulary: Vocabulary, **template: Any) -> str:
        return vocabulary.decode(Chat(HELLO, template=template).tokens(vocabulary))

    knows = of_template("x{{ enable_thinking }}")
    assert text(knows, enable_thinking=True) == "xTrue"
    otherwise = of_template("x{{ thinking }}")
    assert text(otherwise, enable_thinking=True) == "xTrue" == text(otherwise, thinking=True)
    never, always = of_template("x"), of_template("x", thinks=True)
    assert text(never, enable_thinking=False) == "x" == text(always, enable_thinking=True)
    for vocabulary, wish in ((never, True), (always, False)):
        with pytest.raises(OptionError, match="does not use enable_thinking"):
            text(vocabulary, enable_thinking=wish)


@pytest.mark.parametrize(
    "value",
    [object(), b"x", {1: 2}, {"a": {1, 2}}, float("nan"), float("inf"), 10**30, "\ud800", print],
)
def test_only_plain_json_is_taken(value: Any) -> None:
    with pytest.raises(OptionError, match=r"^template: mood"):
        Chat(HELLO, template={"mood": value}).tokens(of_template("x{{ mood }}"))


def test_deep_values_are_refused_and_json_is_taken() -> None:
    vocabulary = of_template("{{ mood | tojson }}")
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    with pytest.raises(OptionError, match="nested"):
        Chat(HELLO, template={"mood": deep}).tokens(vocabulary)
    value = {"a": [1, 2.5, None, True, "é"], "b": {}}
    ids = Chat(HELLO, template={"mood": value}).tokens(vocabulary)
    assert vocabulary.decode(ids) == '{"a": [1, 2.5, null, true, "é"], "b": {}}'


def test_programs_of_mlx_lm_take_the_switch() -> None:
    seen: list[Any] = []

    def program(messages: list[Any], **options: Any) -> str:
        seen.append(options.get("enable_thinking"))
        return "x"

    wrapper = byte_level_tokenizer()
    wrapper._chat_template = program
    vocabulary = Vocabulary.of(wrapper)
    Chat(HELLO, template={"enable_thinking": True}).tokens(vocabulary)
    assert seen and all(seen)
    for name in ("messages", "drop_thinking", "context", "tokenize"):
        with pytest.raises(OptionError):
            Chat(HELLO, template={name: True}).tokens(vocabulary)
    assert families()
