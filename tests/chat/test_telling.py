"""A conversation in roles that the template refuses is told in others, each part in its place."""

from __future__ import annotations

from typing import Any

import pytest

from mlxgen import Chat
from mlxgen.chat.dialect import Dialect
from mlxgen.chat.turn import Turn, plan_turn
from mlxgen.errors import PromptError
from mlxgen.tokens import Vocabulary
from tests.fakes import byte_level_tokenizer

SAYS = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}"
FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system comes first') }}{% endif %}{% endfor %}" + SAYS
)
NEVER = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('no system') }}{% endif %}{% endfor %}" + SAYS
)
IN_TURN = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('in turn, please') }}{% endif %}{% endfor %}" + SAYS
)
TOLD = [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("system", "d")]


def text(template: str, told: list[tuple[str, str]]) -> str:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = template
    dialect = Dialect.of(Vocabulary.of(tokenizer))
    chat = Chat([{"role": role, "content": content} for role, content in told])
    return dialect.vocabulary.decode(plan_turn(Turn(chat=chat), dialect).ids)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (SAYS, "system:s|user:a|assistant:b|user:c|system:d|"),
        (FIRST_ONLY, "system:s|user:a|assistant:b|user:c\n\nd|"),
        (NEVER, "user:s\n\na|assistant:b|user:c\n\nd|"),
        (IN_TURN, "user:s\n\na|assistant:b|user:c\n\nd|"),
    ],
)
def test_instructions_keep_their_places_as_closely_as_the_template_allows(
    template: str, expected: str
) -> None:
    assert text(template, TOLD) == expected


def test_what_no_telling_mends_is_refused_with_the_templates_own_reason() -> None:
    with pytest.raises(PromptError, match="in turn"):
        text(IN_TURN, [("nobody", "a")])


NO_TOOLS = (
    "{% for m in messages %}{% if m.role == 'tool' or m.tool_calls %}"
    "{{ raise_exception('no tools') }}{% endif %}{% endfor %}"
)
CALLED: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": "b",
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"x": 1}}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "c"},
]


@pytest.mark.parametrize(
    ("template", "system"),
    [(NO_TOOLS + SAYS, "system:s|user:a"), (NO_TOOLS + NEVER, "user:s\n\na")],
)
def test_calls_and_results_are_told_as_text_where_the_template_knows_none(
    template: str, system: str
) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = template
    dialect = Dialect.of(Vocabulary.of(tokenizer))
    told = dialect.vocabulary.decode(plan_turn(Turn(chat=Chat(CALLED)), dialect).ids)
    call = '{"name": "f", "arguments": {"x": 1}}'
    assert told == f"{system}|assistant:b\n{call}|user:Result: c|"


# ---- what templates leave out without a word -----------------------------------------------------


def asks(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def says(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def calls(*each: dict[str, Any], content: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(each)}


def returns(id: str | None, content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, **({} if id is None else {"tool_call_id": id})}


USER = says("user", "ONE")
OSLO, ROME = asks("a", "weather", city="OSLO"), asks("b", "bash", command="ROME")
TWO = [USER, calls(OSLO, ROME), returns("a", "COLD"), returns("b", "HOT")]
SECOND = [says("system", "FIRST"), says("developer", "SECOND"), USER]
LATE = [USER, says("assistant", "TWO"), says("system", "LATE"), says("user", "THREE")]

CHATML = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
HEAD_ONLY = (  # gpt-oss, SmolLM3, Bielik: instructions only as the first message
    "{% if messages[0].role in ['system', 'developer'] %}[s]{{ messages[0].content }}{% endif %}"
    "{% for m in messages %}{% if m.role not in ['system', 'developer'] %}"
    "[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
LAST_ONLY = (  # R1 distils: the last instructions, wherever they are
    "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.s = m.content %}{% endif %}{% endfor %}{{ ns.s }}"
    "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}"
    "[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
FIRST_CALL = (  # gpt-oss, GigaChat3, Llama 3.1: one call, whose name is that of all results
    "{% set ns = namespace(n='') %}{% for m in messages %}{% if m.tool_calls %}"
    "{% set c = m.tool_calls[0].function %}{% set ns.n = c.name %}"
    "[call {{ c.name }}]{{ c.arguments | tojson }}"
    "{% elif m.role == 'tool' %}[result {{ ns.n }}]{{ m.content }}"
    "{% elif m.role != 'function' %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
LAST_NAME = FIRST_CALL.replace(  # both calls, but results with the name of the last one
    "{% set c = m.tool_calls[0].function %}{% set ns.n = c.name %}"
    "[call {{ c.name }}]{{ c.arguments | tojson }}",
    "{% for t in m.tool_calls %}{% set c = t.function %}{% set ns.n = c.name %}"
    "[call {{ c.name }}]{{ c.arguments | tojson }}{% endfor %}",
)
NO_IDS = (  # Qwen: only the order tells which result is which
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    "[call]{{ c.function | tojson }}{% endfor %}{% endfor %}"
)
TEXT_OR_CALL = (  # R1: a call is only seen without text
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
    "{% for c in m.tool_calls %}[call {{ c.function.name }}]{{ c.function.arguments }}{% endfor %}"
    "{% else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
IN_REPR = CHATML.replace("{{ m.content }}", "{{ [m.content] | string }}")
FIRST_PART = CHATML.replace(
    "{{ m.content }}", "{{ m.content if m.content is string else m.content[0].text }}"
)
STRICT = IN_TURN.replace("m.role == 'user'", "m.role in ['user', 'system']")
OLD_TURNS = "{% for m in messages[-2:] %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        (HEAD_ONLY, SECOND, "[s]FIRST\n\nSECOND[user]ONE"),
        (HEAD_ONLY, LATE, "[user]ONE[assistant]TWO[user]LATE\n\nTHREE"),
        (LAST_ONLY, SECOND, "FIRST\n\nSECOND[user]ONE"),
        (LAST_ONLY, LATE, "LATE[user]ONE[assistant]TWO[user]THREE"),
        (
            FIRST_CALL,
            TWO,
            '[user]ONE[call weather]{"city": "OSLO"}[result weather]COLD'
            '[call bash]{"command": "ROME"}[result bash]HOT',
        ),
        (
            LAST_NAME,
            TWO,
            '[user]ONE[call weather]{"city": "OSLO"}[result weather]COLD'
            '[call bash]{"command": "ROME"}[result bash]HOT',
        ),
        (
            NO_IDS,
            [USER, calls(OSLO, ROME), returns("b", "HOT"), returns("a", "COLD")],
            '[user]ONE[assistant][call]{"name": "weather", "arguments": {"city": "OSLO"}}'
            '[call]{"name": "bash", "arguments": {"command": "ROME"}}[tool]COLD[tool]HOT',
        ),
        (
            NO_IDS,
            [USER, calls(OSLO, ROME), returns("b", "HOT"), says("user", "AND"), returns(None, "C")],
            '[user]ONE[assistant][call]{"name": "weather", "arguments": {"city": "OSLO"}}'
            '[call]{"name": "bash", "arguments": {"command": "ROME"}}[tool]C[tool]HOT[user]AND',
        ),
        (
            TEXT_OR_CALL,
            [USER, calls(OSLO, content="SO"), returns("a", "COLD")],
            '[user]ONE[assistant]SO[call weather]{"city": "OSLO"}[tool]COLD',
        ),
        (
            CHATML,
            TWO,
            '[user]ONE[assistant]{"name": "weather", "arguments": {"city": "OSLO"}}\n'
            '{"name": "bash", "arguments": {"command": "ROME"}}[tool]COLD[tool]HOT',
        ),
        (
            FIRST_CALL,
            [USER, calls(OSLO), {"role": "function", "name": "weather", "content": "COLD"}],
            '[user]ONE[call weather]{"city": "OSLO"}[result weather]COLD',
        ),
        (
            FIRST_PART,
            [{"role": "user", "content": [{"type": "text", "text": t} for t in ("ONE", "TWO")]}],
            "[user]ONE\nTWO",
        ),
        (IN_REPR, [says("user", "a\nb")], "[user]['a\\nb']"),
        (STRICT, [says("assistant", "HI"), USER], "user:|assistant:HI|user:ONE|"),
        (
            IN_TURN,
            [USER, says("assistant", "A"), says("assistant", "B"), USER],
            "user:ONE|assistant:A\n\nB|user:ONE|",
        ),
        (  # what is drawn apart here is joined there
            OLD_TURNS,
            [USER, says("user", "TWO"), says("user", "THREE")],
            "[user]ONE\n\nTWO\n\nTHREE",
        ),
    ],
)
def test_nothing_is_lost_on_its_way_into_the_prompt(
    template: str, messages: list[dict[str, Any]], expected: str
) -> None:
    vocabulary = of_template(template)
    told = Chat(messages).told(vocabulary)
    assert vocabulary.decode(told.tokens) == expected
    assert told.left_out == ()


def of_template(template: str) -> Vocabulary:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = template
    return Vocabulary.of(tokenizer)


def test_a_prompt_that_grows_keeps_its_beginning() -> None:
    vocabulary = of_template(FIRST_CALL)
    grown = [*TWO, says("assistant", "DONE"), says("user", "NEXT")]
    begun = Chat(TWO).tokens(vocabulary)
    assert Chat(grown).tokens(vocabulary)[: len(begun)] == begun


def test_what_no_way_can_tell_is_named() -> None:
    silent = "x{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    turns = [USER, says("assistant", "TWO"), says("user", "THREE")]
    assert Chat(turns).told(of_template(silent)).left_out == ("messages[1].content",)
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    assert Chat([USER], tools=[tool]).told(of_template(CHATML)).left_out == ("tools",)


@pytest.mark.parametrize("name", ["tools", "xml_tools", "functions"])
def test_tools_are_shown_under_the_name_that_the_template_uses(name: str) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    template = f"{{% for t in {name} %}}{{{{ t | tojson }}}}{{% endfor %}}" + CHATML
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
