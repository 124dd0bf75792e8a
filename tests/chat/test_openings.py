"""Where messages begin is found in the tokens of a prompt, whatever the template writes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from mlxgen.chat import Chat
from mlxgen.chat.openings import beginnings, openings_of
from mlxgen.errors import MlxgenError
from mlxgen.tokens import Vocabulary
from tests.fakes import alphabet_tokenizer

from .families import MAKERS, Family, families, vocabulary_of

TALK = [
    {"role": "system", "content": "abc"},
    {"role": "user", "content": "def"},
    {"role": "assistant", "content": "ghi"},
    {"role": "user", "content": "jkl"},
]
FAMILIES = {family.name: family for family in families()}
MADE = ["gpt-oss", "DeepSeek V3 and R1", "OLMo 3"]


def messages(vocabulary: Vocabulary) -> list[str]:
    """The text of a talk, cut where messages begin."""
    for talk in (TALK, TALK[1:]):
        try:
            tokens = Chat(talk).tokens(vocabulary)
        except MlxgenError:  # it takes no system prompt
            continue
        cuts = beginnings(tokens, openings_of(vocabulary))
        return [vocabulary.decode(tokens[a:b]) for a, b in pairwise([*cuts, len(tokens)])]
    raise AssertionError("it takes no chat")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_each_message_of_a_family_begins_where_its_header_does(family: Family) -> None:
    cut = messages(family.vocabulary)
    for said in ("def", "jkl"):
        (message,) = [text for text in cut if said in text]
        assert any(mark in message.partition(said)[0] for mark in family.control)
        assert message is cut[-1] or message.rstrip().endswith(
            (said, *family.control, f"{said}[/INST]  ghi", f"{said}[/INST] ghi")
        )
    if "mistral" not in family.name and family.name != "metaspace":  # it writes none
        assert "ssistant" in cut[-1] or "model" in cut[-1]


@pytest.mark.parametrize("name", MADE)
def test_an_answer_begins_after_what_was_asked(name: str) -> None:
    cut = messages(vocabulary_of(name))
    assert "ssistant" in cut[-1] and "jkl" in cut[-2] and "ghi" in cut[-3]
    assert name in MAKERS


def test_what_a_tool_returns_is_a_message_too() -> None:
    vocabulary = FAMILIES["qwen"].vocabulary
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}
    talk: list[dict[str, Any]] = [
        *TALK[:2],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "mno"},
    ]
    tokens = Chat(talk).tokens(vocabulary)
    cuts = beginnings(tokens, openings_of(vocabulary))
    assert vocabulary.decode(tokens[cuts[-2] : cuts[-1]]).startswith("<|im_start|>user")
    assert "mno" in vocabulary.decode(tokens[cuts[-2] : cuts[-1]])
    assert len(openings_of(FAMILIES["phi"].vocabulary)) == 3


def test_headers_of_plain_text_are_found_where_they_are_whole() -> None:
    vocabulary = Vocabulary.of(alphabet_tokenizer())
    assert messages(vocabulary)[-1] == "<|im_start|>assistant\n"
    cut = vocabulary.encode("<|im_start|>assist<|im_start|>assistant\n<|im_st")
    assert beginnings(cut, openings_of(vocabulary)) == [len("<|im_start|>assist")]
    assert beginnings(cut[:5], openings_of(vocabulary)) == []


@pytest.mark.parametrize(
    "template",
    [None, "{{ raise_exception('no') }}", "{% for m in messages %}{{ m.content }}\n{% endfor %}"],
)
def test_nothing_is_known_of_a_model_without_headers(template: str | None) -> None:
    tokenizer = alphabet_tokenizer()
    tokenizer._tokenizer.chat_template = template
    tokenizer.has_chat_template = template is not None
    assert openings_of(Vocabulary.of(tokenizer)) == ()
