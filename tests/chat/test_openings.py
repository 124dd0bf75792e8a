"""Where messages begin is found in the tokens of a prompt, whatever the template writes.

Each line of ``tests/data/openings.jsonl`` has a family and a conversation as its template writes
it, cut where messages begin.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from mlxgen.chat import Chat
from mlxgen.chat.openings import beginnings, openings_of
from mlxgen.tokens import Vocabulary
from tests.fakes import alphabet_tokenizer

from ..effort import table
from .families import MAKERS, families, vocabulary_of

CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}
TALKS: dict[str, list[dict[str, Any]]] = {
    "": [
        {"role": "user", "content": "def"},
        {"role": "assistant", "content": "ghi"},
        {"role": "user", "content": "jkl"},
    ],
    "calls": [
        {"role": "user", "content": "def"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "mno"},
    ],
}
SYSTEM = {"role": "system", "content": "abc"}


def cut(vocabulary: Vocabulary, talk: list[dict[str, Any]]) -> list[str]:
    """The text of a talk, cut where messages begin."""
    tokens = Chat(talk).tokens(vocabulary)
    cuts = beginnings(tokens, openings_of(vocabulary))
    return [vocabulary.decode(tokens[a:b]) for a, b in pairwise([*cuts, len(tokens)])]


def test_messages_begin_where_their_headers_do() -> None:
    known = {family.name: family.vocabulary for family in families()}
    known["plain text"] = Vocabulary.of(alphabet_tokenizer())
    for case in table("openings"):
        name = case["family"]
        vocabulary = vocabulary_of(name) if name in MAKERS else known[name]
        talk = TALKS[case.get("talk", "")]
        assert cut(vocabulary, [SYSTEM, *talk] if "system" in case else talk) == case["cut"], name
    assert known.keys() <= {case["family"] for case in table("openings")}
    assert len(openings_of(known["phi"])) == 3


def test_headers_of_plain_text_are_found_where_they_are_whole() -> None:
    vocabulary = Vocabulary.of(alphabet_tokenizer())
    tokens = vocabulary.encode("<|im_start|>assist<|im_start|>assistant\n<|im_st")
    assert beginnings(tokens, openings_of(vocabulary)) == [len("<|im_start|>assist")]
    assert beginnings(tokens[:5], openings_of(vocabulary)) == []


@pytest.mark.parametrize(
    "template",
    [None, "{{ raise_exception('no') }}", "{% for m in messages %}{{ m.content }}\n{% endfor %}"],
)
def test_nothing_is_known_of_a_model_without_headers(template: str | None) -> None:
    tokenizer = alphabet_tokenizer()
    tokenizer._tokenizer.chat_template = template
    tokenizer.has_chat_template = template is not None
    assert openings_of(Vocabulary.of(tokenizer)) == ()
