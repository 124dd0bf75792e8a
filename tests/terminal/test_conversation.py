"""Conversations: what was said, what is taken back, and their JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxgen import OptionError, PromptError, StateError
from mlxgen.filters import AllOf, JsonSchema, Regex
from mlxgen.options.table import OPTIONS
from mlxgen.terminal.conversation import SETTABLE, Conversation, Exchange

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
said = st.lists(st.builds(Exchange, words, st.text("abc"), st.text("xyz")), max_size=5)


def conversation(*exchanges: tuple[str, str], **options: Any) -> Conversation:
    made = Conversation(**options)
    for message, answer in exchanges:
        made.ask(message)
        made.answered(answer)
    return made


def of(exchanges: list[Exchange]) -> Conversation:
    made = Conversation()
    for exchange in exchanges:
        made.ask(exchange.message)
        made.answered(exchange.answer, exchange.reasoning)
    return made


# ---- what was said ----


def test_defaults_hold_for_what_was_not_set_and_are_not_saved() -> None:
    made = conversation(("a", "b"), defaults={"temperature": 0.5, "top_k": 7})
    made.set("top_k", 3)
    for one in (made, made.fork()):
        assert one.options == {
            "max_tokens": None,
            "loops": "take back",
            "temperature": 0.5,
            "top_k": 3,
        }
        assert (one.values()["temperature"], one.settings) == (0.5, {"top_k": 3})
    made.set("top_k", None)
    assert made.options["top_k"] == 7
    assert made.as_json()["settings"] == {}


def test_messages_are_in_order_with_the_system_message_first() -> None:
    made = conversation(("a", "b"), system="s")
    made.ask("c")
    assert made.messages == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    made.answered("d", "because")
    assert made.messages[-1] == {
        "role": "assistant",
        "content": "d",
        "reasoning_content": "because",
    }


@given(said, words)
def test_an_exchange_that_is_undone_was_never_there(exchanges: list[Exchange], text: str) -> None:
    made = of(exchanges)
    before = made.as_json()
    made.ask(text)
    made.answered("answer")
    assert made.undo() == Exchange(text, "answer")
    assert made.as_json() == before


@given(said.filter(bool), words)
def test_what_is_withdrawn_leaves_everything_as_it_was(
    exchanges: list[Exchange], text: str
) -> None:
    made = of(exchanges)
    before = made.as_json()
    ways: list[Callable[[], None]] = [
        lambda: made.ask(text),
        made.retry,
        lambda: made.edit(text),
    ]
    for begin in ways:
        begin()
        assert made.messages[-1]["role"] == "user"
        made.withdraw()
        assert made.as_json() == before


@given(said.filter(bool), words)
def test_retry_and_edit_replace_the_last_exchange_only(
    exchanges: list[Exchange], text: str
) -> None:
    made = of(exchanges)
    made.retry()
    made.answered("other")
    assert made.exchanges == [*exchanges[:-1], Exchange(exchanges[-1].message, "other")]
    made.edit(text)
    made.answered("and again")
    assert made.exchanges == [*exchanges[:-1], Exchange(text, "and again")]


def test_a_fork_and_its_origin_do_not_see_each_other() -> None:
    made = conversation(("a", "b"), system="s", template={"x": 1})
    made.set("seed", 1)
    before = made.as_json()
    twin = made.fork()
    assert twin.as_json() == before
    twin.undo()
    twin.system = None
    twin.set("seed", 2)
    twin.require("regex", "a")
    twin.template["x"] = 2
    assert made.as_json() == before


def test_what_cannot_be_done_says_so_and_changes_nothing() -> None:
    empty = Conversation()
    for act in (empty.undo, empty.retry, lambda: empty.edit("a")):
        with pytest.raises(StateError, match="there are no messages yet"):
            act()
    with pytest.raises(StateError, match="no message is waiting"):
        empty.withdraw()
    made = conversation(("a", "b"))
    made.ask("c")
    for act in (lambda: made.ask("d"), made.retry, lambda: made.edit("d")):
        with pytest.raises(StateError, match="is waiting for its answer"):
            act()
    made.withdraw()
    for text in ("", " \n", "\ud800"):
        with pytest.raises(PromptError, match="message is"):
            made.ask(text)
        with pytest.raises(PromptError, match="message is"):
            made.edit(text)
        with pytest.raises(PromptError, match="system message is"):
            made.system = text
    assert made.as_json() == conversation(("a", "b")).as_json()


# ---- settings and forms ----


def test_every_option_can_be_set_or_says_what_to_do_instead() -> None:
    made = Conversation()
    for name in OPTIONS:
        if name in SETTABLE:
            made.set(name, None)
        else:
            with pytest.raises(OptionError, match=f"^{name}: .*(use|only|leave)"):
                made.set(name, None)
    assert set(made.values()) == set(SETTABLE)
    assert made.values()["temperature"] == 0
    made.set("stop", "END")
    assert made.values()["stop"] == ("END",)


def test_forms_hold_together_and_are_lifted_one_by_one() -> None:
    made = Conversation()
    kinds = [type(made.form)]
    for kind, source in (("json", {"type": "object"}), ("regex", "a+"), ("json", None)):
        made.require(kind, source)
        kinds.append(type(made.form))
    assert kinds == [type(None), JsonSchema, AllOf, Regex]
    with pytest.raises(OptionError):
        made.require("lark", 5)
    assert made.forms == {"regex": "a+"}


def test_objects_of_a_schema_are_closed() -> None:
    made = Conversation()
    made.require("json", {"properties": {"a": {}}})
    assert made.form == JsonSchema({"properties": {"a": {}}}, closed=True)


def test_closing_goes_with_the_last_form() -> None:
    made = Conversation()
    with pytest.raises(OptionError, match="close_json: needs a filter"):
        made.set("close_json", True)
    made.require("json", True)
    made.set("close_json", True)
    made.require("json", None)
    assert made.settings == {}


# ---- JSON ----


def test_json_brings_everything_back() -> None:
    made = conversation(("a", "b"), ("c\nd", ""), system="s", template={"enable_thinking": False})
    made.ask("e")
    made.answered("f", "hm")
    made.set("temperature", 0.25)
    made.set("logit_bias", {"5": -1})
    made.set("stop", ["x", "y"])
    made.require("json", {"type": "array"})
    data = json.loads(json.dumps(made.as_json()))
    again = Conversation.of_json(data)
    assert again.exchanges == made.exchanges
    assert again.options == made.options
    assert again.options["logit_bias"] == {5: -1}
    assert json.loads(json.dumps(again.as_json())) == data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "messages: expected a file that /save has written"),
        ({"settings": {}}, "messages: expected a file that /save has written"),
        ({"messages": 5}, "messages: expected a list, got int"),
        ({"messages": [5]}, r"messages\[0\].role: expected user or system, got None"),
        (
            {"messages": [{"role": "tool", "content": "a"}]},
            r"messages\[0\].role: expected .* got 'tool'",
        ),
        (
            {"messages": [{"role": "user", "content": 5}]},
            r"messages\[0\].content: expected text, got int",
        ),
        ({"messages": [{"role": "user", "content": "a"}] * 2}, "expected assistant, got 'user'"),
        ({"messages": [{"role": "user", "content": "a"}]}, "the last message has no answer"),
        ({"messages": [], "extra": 1}, "extra: .*known are messages, settings"),
        ({"messages": [], "settings": []}, "settings: expected a JSON object, got list"),
        (
            {"messages": [], "settings": {"top_p": 7}},
            "top_p: expected a number above 0 and at most 1, got 7",
        ),
        ({"messages": [], "settings": {"hooks": []}}, "hooks: only a program"),
        ({"messages": [], "forms": {"yaml": 1}}, "forms.yaml: expected one of json"),
    ],
)
def test_json_that_is_no_conversation_names_the_part(data: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Conversation.of_json(data)
