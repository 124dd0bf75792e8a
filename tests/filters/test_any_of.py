"""Filters that choose between others: by the first token, or by what still fits."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

from mlxgen.errors import FilterError
from mlxgen.filters import After, Checked, Choice, JsonObject, Regex, no_tokens, tokens_of
from mlxgen.filters.any_of import AnyOf, FirstToken
from mlxgen.tokens import Token, Vocabulary
from tests.fakes import alphabet_tokenizer, sentencepiece_tokenizer

VOCABULARY = Vocabulary.of(alphabet_tokenizer(["<t>", "</t>", "ab"]))
OPEN, CLOSE, AB = 256, 257, 258
SIZE = VOCABULARY.size

ANY = AnyOf((Regex("a*b"), Regex("(ab)*c"), Choice(["aab", "x"])))
FIRST = FirstToken(Regex("[ab]*"), ((OPEN, After("</t>", Choice(["ab", "b"]), required=True)),))


def running(spec: Any, text: list[Token]) -> Any:
    filter = spec.bind(VOCABULARY, SIZE)
    for token in text:
        filter.advance(token)
    return filter


def allowed(filter: Any) -> set[Token]:
    row = no_tokens(SIZE)
    if not filter.fill(row):
        row[:] = -1
    return {token for token in tokens_of(row).tolist() if token < SIZE - 1}


def view(filter: Any) -> Any:
    return allowed(filter), filter.can_end(), list(filter.forced())


def test_any_of_allows_what_one_of_them_allows() -> None:
    assert allowed(running(ANY, [])) == {ord(c) for c in "abcx"} | {AB}
    assert allowed(running(ANY, [ord("a")])) == {ord("a"), ord("b"), AB}
    assert allowed(running(ANY, [AB])) == {ord("a"), ord("c"), AB}


def test_any_of_ends_where_one_of_them_ends() -> None:
    assert not running(ANY, []).can_end()
    assert running(ANY, [ord("a"), ord("b")]).can_end()
    assert not running(ANY, [AB, AB]).can_end()


def test_any_of_refuses_what_none_of_them_takes_and_does_not_change() -> None:
    filter = running(ANY, [ord("a")])
    before = view(filter)
    with pytest.raises(FilterError):
        filter.advance(ord("x"))
    assert view(filter) == before


def test_any_of_knows_what_must_come_once_one_is_left() -> None:
    both = running(AnyOf((Choice(["abc"]), Choice(["abd"]))), [])
    assert list(both.forced()) == []
    one = running(AnyOf((Choice(["abc"]), Choice(["xyz"]))), [ord("x")])
    assert list(one.forced()) == [ord("y"), ord("z")]


def test_what_was_out_is_in_again_after_a_rewind() -> None:
    filter = running(ANY, [ord("x")])
    filter.rewind(0)
    assert view(filter) == view(running(ANY, []))


def test_the_first_token_chooses_another_specification() -> None:
    filter = running(FIRST, [])
    assert allowed(filter) == {ord("a"), ord("b"), AB, OPEN} and filter.can_end()
    filter.advance(OPEN)
    assert len(allowed(filter)) > 100 and not filter.can_end()
    filter.advance(CLOSE)
    assert allowed(filter) == {ord("a"), ord("b"), AB}
    with pytest.raises(FilterError):
        running(FIRST, [ord("a"), OPEN])


def test_a_first_token_that_its_filter_refuses_is_not_allowed() -> None:
    spec = FirstToken(Regex("(?s:.*)"), ((OPEN, Choice(["x"])),))
    assert OPEN not in allowed(running(spec, []))


def test_validation_agrees_with_advancing() -> None:
    for spec in (ANY, FIRST):
        assert running(spec, []).validate([ord("a"), ord("b"), ord("z")]) == 2
        assert running(spec, []).validate([]) == 0


def test_specifications_can_be_sent_to_another_process_without_the_model_room() -> None:
    spec = FirstToken(AnyOf((JsonObject(), Regex("a"))), ((OPEN, Regex("b")),))
    assert pickle.loads(pickle.dumps(spec)) == spec
    script = (
        "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]));"
        "assert 'mlx.core' not in sys.modules and 'pydantic' not in sys.modules"
    )
    data = pickle.dumps(spec).hex()
    subprocess.run([sys.executable, "-c", script, data], check=True)


def test_a_filter_in_use_is_asked_alone() -> None:
    assert len(running(ANY, []).asked()) == 3
    assert len(running(ANY, [ord("x")]).asked()) == 1
    assert len(running(FIRST, []).asked()) == 2


def test_a_leading_space_that_the_text_loses_is_allowed() -> None:
    vocabulary = Vocabulary.of(sentencepiece_tokenizer())
    (spaced,) = (t for t in vocabulary.spelling(b" a").tolist())
    specs: list[Any] = [AnyOf((Choice(["a"]), Choice(["b"]))), FirstToken(Choice(["a"]), ())]
    for spec in specs:
        assert spec.bind_opening(vocabulary, vocabulary.size).validate([spaced]) == 1
        assert spec.bind(vocabulary, vocabulary.size).validate([spaced]) == 0


def test_a_piece_is_checked_once_the_text_cannot_follow_another_specification() -> None:
    spec = AnyOf((Checked(lambda piece, before: f"no {piece!r}"), Regex("ab\n+c")))
    for text, due in ((b"ab\n", False), (b"ab\nb\n", True), (b"b\n", True)):
        assert running(spec, list(text)).due is due
    found = running(spec, list(b"ab\nb\n")).objection()
    assert found is not None and found.reason == "no 'b\\n'"
    assert running(spec, list(b"ab\nc")).objection() is None, "the other one lets it end so"
