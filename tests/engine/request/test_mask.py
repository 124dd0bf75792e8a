"""The mask of the next token, compared with asking everybody about every token."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import Regex
from mlxgen.engine.branches import Steering
from mlxgen.engine.options import Options
from mlxgen.engine.request.leads import leaves_any, next_mask
from mlxgen.engine.request.prompt import Prompt
from mlxgen.engine.request.request import Request
from mlxgen.errors import DeadEndError, FilterError
from mlxgen.filters import tokens_of, words_of
from mlxgen.tokens import Token, Vocabulary
from tests.fakes import alphabet_tokenizer

from ...effort import tries

VOCABULARY = Vocabulary.of(alphabet_tokenizer(["ab", "abc", "bc"]))
LETTERS = [*b"abc", 256, 257, 258, *VOCABULARY.eos]
SIZE = VOCABULARY.size + 5  # logits are often wider than the vocabulary

some = st.sets(st.sampled_from(LETTERS))
few = st.sets(st.sampled_from(LETTERS), max_size=2)
FILTERS = [[], [Regex("[a-c]*")], [Regex("(ab|cb)*c"), Regex("[abc]{0,3}")]]
options = st.fixed_dictionaries(
    {
        "filters": st.sampled_from(FILTERS),
        "min_tokens": st.sampled_from([0, 0, 2]),
        "stop_tokens": st.sampled_from([[], [97, [98, 99]]]),
        "ignore_eos": st.booleans(),
        "heal": st.booleans(),
    }
)


def request_of(given_: dict[str, Any], prompt: bytes = b"xab") -> Request:
    checked = Options.of({"max_tokens": 8, **given_})
    prepared = Prompt(tuple(prompt), opens_text=False)
    return Request(prepared, checked, VOCABULARY, SIZE, budget=8, seed=1)


def may_come(request: Request, token: Token) -> bool:
    """Whether the options let a token come, and the parts take it."""
    options, length, free = request.options, len(request.history), request.constraint is None
    early = request.position < options.min_tokens
    if token in VOCABULARY.eos and (early or (options.ignore_eos and not free)):
        return False
    if early and (token,) in options.stop_tokens:
        return False
    if token >= VOCABULARY.size:  # an id without a token: only the filters exclude it
        return free and not request.is_healing
    try:
        request.advance(token)
    except FilterError:
        return False
    request.rewind(length)
    return True


def check(request: Request, plain: Set[Token]) -> None:
    if not plain:
        with pytest.raises(DeadEndError):
            next_mask(request)
        return
    words = next_mask(request)
    assert plain == (set(range(SIZE)) if words is None else set(tokens_of(words).tolist()))


@settings(max_examples=tries(1600))
@given(options, st.lists(st.sampled_from(LETTERS), max_size=3), few, few, st.none() | some, few)
def test_the_mask_allows_what_everybody_allows(
    given_: dict[str, Any],
    tokens: list[Token],
    excluded: set[Token],
    banned: set[Token],
    steered: set[Token] | None,
    also: set[Token],
) -> None:
    request = request_of(given_)
    for token in tokens:
        if token in VOCABULARY.eos or not may_come(request, token):
            continue
        if request.advance(token) is not None:
            return  # a stop
    position = request.position
    request.retries.ask(position, excluded)
    for token in banned:
        request.retries.exclude(position, token)
        request.retries.exclude(position + 1, 98)  # of another position
    if steered is not None:
        request.steering = Steering(words_of(steered, SIZE))
    plain = {token for token in range(SIZE) if may_come(request, token)} - excluded - banned
    plain = plain if steered is None else plain & steered
    check(request, plain)
    assert leaves_any(request, also) == bool(plain - also)
