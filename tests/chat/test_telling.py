"""A conversation in roles that the template refuses is told in others, each part in its place."""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from mlxgen import Chat
from mlxgen.chat.dialect import Dialect
from mlxgen.chat.turn import Turn, plan_turn
from mlxgen.errors import PromptError
from mlxgen.tokens import Vocabulary
from tests.fakes import byte_level_tokenizer

GIVEN: dict[str, Any] = json.loads((Path(__file__).parent / "telling.json").read_text())
TEMPLATES: dict[str, str] = GIVEN["templates"]
USER = {"role": "user", "content": "ONE"}


@pytest.mark.parametrize("case", GIVEN["cases"], ids=itemgetter(0))
def test_nothing_is_lost_on_its_way_into_the_prompt(case: list[Any]) -> None:
    template, messages, expected = case
    vocabulary = of_template(TEMPLATES[template])
    told = Chat(messages).told(vocabulary)
    assert vocabulary.decode(told.tokens) == expected
    assert told.left_out == ()


def test_what_no_telling_mends_is_refused_with_the_templates_own_reason() -> None:
    with pytest.raises(PromptError, match="in turn"):
        Chat([{"role": "nobody", "content": "a"}]).told(of_template(TEMPLATES["in turn"]))


def of_template(template: str) -> Vocabulary:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = template
    return Vocabulary.of(tokenizer)


def test_a_prompt_that_grows_keeps_its_beginning() -> None:
    vocabulary = of_template(TEMPLATES["first call"])
    two = next(messages for name, messages, _ in GIVEN["cases"] if name == "first call")
    grown = [*two, {"role": "assistant", "content": "DONE"}, USER]
    begun = Chat(two).tokens(vocabulary)
    assert Chat(grown).tokens(vocabulary)[: len(begun)] == begun


def test_what_no_way_can_tell_is_named() -> None:
    silent = "x{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    turns = [USER, {"role": "assistant", "content": "TWO"}, USER]
    assert Chat(turns).told(of_template(silent)).left_out == ("messages[1].content",)
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    assert Chat([USER], tools=[tool]).told(of_template(TEMPLATES["chatml"])).left_out == ("tools",)


@pytest.mark.parametrize("name", ["tools", "xml_tools", "functions"])
def test_tools_are_shown_under_the_name_that_the_template_uses(name: str) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    template = f"{{% for t in {name} %}}{{{{ t | tojson }}}}{{% endfor %}}" + TEMPLATES["chatml"]
    vocabulary = of_template(template)
    told = Chat([USER], tools=[tool]).told(vocabulary)
    assert '"name": "look"' in vocabulary.decode(told.tokens) and not told.left_out


# ---- thinking ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "effort", "expected", "budget"),
    [
        ("{{ enable_thinking }}", "none", "False", 0),
        ("{{ thinking }}", "none", "False", 0),
        ("{{ enable_thinking }}/{{ 'high' == reasoning_effort }}", "none", "False/False", 0),
        ("{{ disable_thinking }}", "none", "True", 0),
        ("{{ 'off' if thinking_mode == 'off' else 'on' }}", "none", "off", 0),
        ("{{ thinking_budget }}", "none", "0", 0),
        ("{{ reasoning_effort }}", "none", "low", 0),
        ("{{ reasoning_effort }}", "max", "high", None),
        ("{{ reasoning_effort }}", "minimal", "low", None),
        ("{{ reasoning_effort }}{{ 'max' if 'high' }}", "xhigh", "maxmax", None),
        ("{{ reasoning_effort }}{{ 'high' if 'max' }}", "low", "highhigh", None),
        ("none at all", "none", "none at all", 0),
    ],
)
def test_an_effort_is_told_in_the_nearest_words_of_the_template(
    template: str, effort: Any, expected: str, budget: int | None
) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer._tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer = type(tokenizer)(tokenizer._tokenizer, eos_token_ids=tokenizer.eos_token_ids)
    tokenizer.chat_template = template + "|{{ messages[0].content }}"
    dialect = Dialect.of(Vocabulary.of(tokenizer))
    plan = plan_turn(Turn(chat=Chat([USER]), effort=effort), dialect)
    assert dialect.vocabulary.decode(plan.ids) == f"{expected}|ONE"
    assert plan.thinking_budget == budget
    if effort == "none":  # it is one wish, under every name
        silent = Chat([USER], template={"enable_thinking": False})
        plan = plan_turn(Turn(chat=silent), dialect)
        assert plan.thinking_budget == budget
