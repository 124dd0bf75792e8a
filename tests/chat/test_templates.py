"""A chat is what the model's chat template makes of it, and nothing of it is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxgen import Chat, OptionError, PromptError, Vocabulary
from mlxgen.chat.calls.values import returned
from mlxgen.chat.dialect import Dialect, ending_turns
from mlxgen.chat.template import format, sandbox
from mlxgen.chat.turn import Turn, plan_turn
from tests.fakes import byte_level_tokenizer

from ..effort import table

GIVEN: dict[str, Any] = json.loads((Path(__file__).parent / "telling.json").read_text())
TEMPLATES: dict[str, str] = GIVEN["templates"]
BYTE_LEVEL = Vocabulary.of(byte_level_tokenizer())
HELLO = [{"role": "user", "content": "so sad"}]
USER = {"role": "user", "content": "ONE"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


def of_template(template: Any, *, thinks: bool = False) -> Vocabulary:
    wrapper = byte_level_tokenizer()
    if thinks:
        wrapper._tokenizer.add_tokens(["<think>", "</think>"])
        wrapper = type(wrapper)(wrapper._tokenizer, eos_token_ids=wrapper.eos_token_ids)
    if isinstance(template, dict):
        wrapper._tokenizer.chat_template = template
    else:
        wrapper.chat_template = template
    return Vocabulary.of(wrapper)


def text_of(chat: Chat, vocabulary: Vocabulary) -> str:
    return vocabulary.decode(chat.tokens(vocabulary))


def test_what_is_not_a_chat_is_refused_with_its_place() -> None:
    for messages, said in GIVEN["refused"]:
        with pytest.raises(PromptError, match=said):
            Chat(messages).tokens(BYTE_LEVEL)


def test_an_image_for_a_model_that_takes_none_is_refused_at_its_place() -> None:
    image = {"type": "image", "image": "a.png"}
    with pytest.raises(OptionError, match="takes no images") as refused:
        Chat([{"role": "user", "content": [image]}]).tokens(BYTE_LEVEL)
    assert refused.value.field == "messages[0].content[0].image"


def test_a_template_that_is_missing_or_broken_is_an_error_of_the_prompt() -> None:
    for template, said in ((None, "no chat template"), ("{% for %}", "cannot be read")):
        wrapper = byte_level_tokenizer()
        wrapper._tokenizer.chat_template = template
        with pytest.raises(PromptError, match=said):
            Chat(HELLO).tokens(Vocabulary.of(wrapper if template else wrapper._tokenizer))
    with pytest.raises(PromptError, match=r"tools\[0\]: .* got int"):
        Chat(HELLO, tools=[1]).tokens(BYTE_LEVEL)


def test_the_mark_that_ends_a_turn_ends_an_answer_though_the_configuration_forgets_it() -> None:
    for template, expected in GIVEN["ends of turns"]:
        tokenizer = byte_level_tokenizer()
        tokenizer._tokenizer.chat_template = template
        tokenizer.eos_token_ids = {tokenizer.convert_tokens_to_ids("<|endoftext|>")}
        vocabulary = ending_turns(Vocabulary.of(tokenizer))
        assert vocabulary.eos == tokenizer.eos_token_ids
        assert {vocabulary.piece(token).decode() for token in vocabulary.eos} == {*expected}


# ---- nothing is lost on its way into the prompt --------------------------------------------------


def test_nothing_is_lost_on_its_way_into_the_prompt() -> None:
    for template, messages, expected in GIVEN["cases"]:
        vocabulary = of_template(TEMPLATES[template])
        told = Chat(messages).told(vocabulary)
        assert vocabulary.decode(told.tokens) == expected, (template, messages)
        assert told.left_out == ()
    with pytest.raises(PromptError, match="in turn"):  # what no telling mends
        Chat([{"role": "nobody", "content": "a"}]).told(of_template(TEMPLATES["in turn"]))


def test_a_prompt_that_grows_keeps_its_beginning() -> None:
    vocabulary = of_template(TEMPLATES["first call"])
    two = next(messages for name, messages, _ in GIVEN["cases"] if name == "first call")
    begun = Chat(two).tokens(vocabulary)
    grown = Chat([*two, {"role": "assistant", "content": "DONE"}, USER]).tokens(vocabulary)
    assert grown[: len(begun)] == begun


def test_what_no_way_can_tell_is_named() -> None:
    silent = "x{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    turns = [USER, {"role": "assistant", "content": "TWO"}, USER]
    assert Chat(turns).told(of_template(silent)).left_out == ("messages[1].content",)
    assert Chat([USER], tools=[TOOL]).told(of_template(TEMPLATES["chatml"])).left_out == ("tools",)


def test_tools_are_shown_under_the_name_that_the_template_uses() -> None:
    for name in ("tools", "xml_tools", "functions", "python_tools", "tool_definitions"):
        shown = f"{{% for t in {name} %}}{{{{ t | tojson }}}}{{% endfor %}}"
        vocabulary = of_template(shown + TEMPLATES["chatml"])
        told = Chat([USER], tools=[TOOL]).told(vocabulary)
        assert '"name": "look"' in vocabulary.decode(told.tokens) and not told.left_out


# ---- variables -----------------------------------------------------------------------------------

OWN = ["messages", "tools", "add_generation_prompt", "continue_final_message"]
OTHERS = ["eos_token", "range", "namespace", "raise_exception", "strftime_now", "not a name", ""]


def test_what_is_passed_anyway_is_not_a_variable() -> None:
    everything = of_template("".join(f"{{{{ {name} }}}}" for name in (*OWN, *OTHERS[:5])) + "x")
    for name in (*OWN, *OTHERS):
        with pytest.raises(OptionError, match=r"^template: .* does not use"):
            Chat(HELLO, template={name: 1}).tokens(everything)


def test_variables_are_found_however_they_are_used() -> None:
    for template in GIVEN["variables"]:
        vocabulary = of_template(template)
        assert text_of(Chat(HELLO, template={"mood": "good"}), vocabulary) == "xgood"
        with pytest.raises(OptionError, match=r"does not use mod, .*: mood$"):
            Chat(HELLO, template={"mod": 1}).tokens(vocabulary)


def test_documents_are_a_variable() -> None:
    vocabulary = of_template("x{% for d in documents or [] %}{{ d.text }}{% endfor %}")
    assert text_of(Chat(HELLO), vocabulary) == "x"
    assert text_of(Chat(HELLO, template={"documents": [{"text": "y"}]}), vocabulary) == "xy"


def test_templates_for_tools_have_variables_of_their_own() -> None:
    vocabulary = of_template({"default": "x{{ a }}", "tool_use": "y{{ b }}"})
    assert text_of(Chat(HELLO, template={"a": 1}), vocabulary) == "x1"
    assert text_of(Chat(HELLO, tools=[TOOL], template={"b": 2}), vocabulary) == "y2"
    with pytest.raises(OptionError, match=r"one of these: b$"):
        Chat(HELLO, tools=[TOOL], template={"a": 1}).tokens(vocabulary)
    with pytest.raises(OptionError, match=r"does not use mod, .*: there are none$"):
        Chat(HELLO, template={"mod": 1}).tokens(of_template("x"))


def test_only_plain_json_is_taken() -> None:
    vocabulary = of_template("{{ mood | tojson }}")
    for value in (object(), b"x", {"a": {1, 2}}, "\ud800", print):
        with pytest.raises(OptionError, match=r"^template: mood"):
            Chat(HELLO, template={"mood": value}).tokens(vocabulary)
    value = {"a": [1, 2.5, None, True, "é"], "b": {}}
    told = text_of(Chat(HELLO, template={"mood": value}), vocabulary)
    assert told == '{"a": [1, 2.5, null, true, "é"], "b": {}}'


# ---- thinking ------------------------------------------------------------------------------------


def test_the_switch_for_thinking_is_heard_or_need_not_be() -> None:
    """Many clients send it to every model."""

    def text(vocabulary: Vocabulary, **template: Any) -> str:
        return text_of(Chat(HELLO, template=template), vocabulary)

    assert text(of_template("x{{ enable_thinking }}"), enable_thinking=True) == "xTrue"
    otherwise = of_template("x{{ thinking }}")
    assert text(otherwise, enable_thinking=True) == "xTrue" == text(otherwise, thinking=True)
    never, always = of_template("x"), of_template("x", thinks=True)
    assert text(never, enable_thinking=False) == "x" == text(always, enable_thinking=True)
    for vocabulary, wish in ((never, True), (always, False)):
        with pytest.raises(OptionError, match="does not use enable_thinking"):
            text(vocabulary, enable_thinking=wish)


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


def test_an_effort_is_told_in_the_nearest_words_of_the_template() -> None:
    for template, effort, expected, budget in GIVEN["efforts"]:
        dialect = Dialect.of(of_template(template + "|{{ messages[0].content }}", thinks=True))
        wishes = [Turn(chat=Chat([USER]), effort=effort)]
        if effort == "none":  # it is one wish, under every name
            wishes.append(Turn(chat=Chat([USER], template={"enable_thinking": False})))
        for turn in wishes:
            assert plan_turn(turn, dialect).thinking_budget == budget, (template, effort)
        told = dialect.vocabulary.decode(plan_turn(wishes[0], dialect).ids)
        assert told == f"{expected}|ONE", (template, effort)


# ---- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", GIVEN["never ending"])
def test_what_would_not_end_is_stopped(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 0.2)
    monkeypatch.setattr(format, "SECONDS", 0.2)
    many = [{"role": "user", "content": "a" * 90}] * 1000
    with pytest.raises(PromptError, match="processor time"):
        Chat(many).tokens(of_template(f"x{template}"))


@pytest.mark.parametrize("template", ["", "{{ '' }}", "{# nothing #}"])
def test_a_chat_of_no_tokens_is_refused(template: str) -> None:
    vocabulary = of_template(template)
    for allowed in (False, True):
        with pytest.raises(PromptError, match="nothing for these messages"):
            Chat(HELLO, allow_control_tokens=allowed).tokens(vocabulary)


# ---- arguments of calls that come back are an object, also if they are not JSON ----------------


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=3), st.booleans())
def test_json_means_what_it_says(value: dict[str, object], ascii: bool) -> None:
    assert returned(json.dumps(value, ensure_ascii=ascii)) == value


def test_what_is_nearly_json_is_repaired_and_what_is_no_object_stays_text() -> None:
    for case in table("returned"):
        assert returned(case["arguments"]) == case["read"], case
    assert returned("[" * 100_000) == "[" * 100_000


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_text_has_an_answer_that_can_be_encoded(text: str) -> None:
    json.dumps(returned("{" + text), ensure_ascii=False).encode()
    json.dumps(returned('{"a": "' + text + '"}'), ensure_ascii=False).encode()
