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
        text(IN_TURN, [("user", "a"), ("assistant", "b"), ("assistant", "c")])


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
