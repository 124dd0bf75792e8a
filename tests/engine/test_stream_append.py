"""Tokens that a caller puts into a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

import mlxgen
from mlxgen import FilterError, OptionError, StateError

from ..fakes.chatting import Chatter

CACHES: dict[str, Callable[[], list[Any]]] = {
    "plain": lambda: [KVCache()],
    "window": lambda: [RotatingKVCache(max_size=1000)],
    "recurrent": lambda: [ArraysCache(1)],
}
PROMPT = [{"role": "user", "content": "x"}]


def ids(chatter: Chatter, text: str) -> list[int]:
    return chatter.lm.vocabulary.encode(text, special=False)


@pytest.mark.parametrize("draft", ["off", "ngram"])
@pytest.mark.parametrize("kind", CACHES)
def test_what_was_taken_back_and_put_again_changes_nothing(kind: str, draft: str) -> None:
    chatter = Chatter(lambda message: "abcabcabcabc", make_cache=CACHES[kind])
    with chatter.lm.stream(PROMPT, draft=draft) as stream:
        while len(stream.tokens) < 7:
            next(stream)
        tokens = stream.tokens
        stream.rewind(to=2)
        stream.append(tokens[2:])
        more = list(stream)
        assert [chunk.token for chunk in more][: len(tokens) - 2] == tokens[2:]
        assert stream.text == "abcabcabcabc"
        assert stream.finish_reason == "stop"


def test_a_text_goes_on_after_what_was_put_there_in_one_pass() -> None:
    chatter = Chatter(lambda message: "abcdef")
    with chatter.lm.stream(PROMPT, draft="off") as stream:
        for _ in range(4):
            next(stream)
        stream.rewind(tokens=2)
        stream.append(ids(chatter, "XY"))
        chatter.ran()
        assert [next(stream).text for _ in range(4)] == ["X", "Y", "e", "f"]
        assert chatter.model.fed[0][-2:] == ids(chatter, "XY")
        assert stream.text == "abXYef"


def test_an_end_can_be_put_there_too_and_nothing_after_it() -> None:
    chatter = Chatter(lambda message: "abcdef")
    (end,) = chatter.lm.vocabulary.eos
    with chatter.lm.stream(PROMPT) as stream:
        next(stream)
        with pytest.raises(StateError, match=r"the text ends \(stop\) after 1 of these 2 tokens"):
            stream.append([end, 5])
        stream.append([end])
        assert [chunk.finish_reason for chunk in stream] == ["stop"]
        with pytest.raises(StateError, match="has ended"):
            stream.append(ids(chatter, "a"))


@pytest.mark.parametrize(
    "options", [{"filters": [mlxgen.Regex("[ab]*")]}, {"banned": ["aXb"]}], ids=["filter", "ban"]
)
def test_what_is_not_allowed_changes_nothing(options: dict[str, Any]) -> None:
    chatter = Chatter(lambda message: "abababab")
    with chatter.lm.stream(PROMPT, **options, draft="off", max_tokens=8) as stream:
        for _ in range(3):
            next(stream)
        tokens, text = stream.tokens, stream.text
        with pytest.raises(FilterError):
            stream.append(ids(chatter, "aXb"))
        assert stream.tokens == tokens
        assert text.startswith(stream.text)  # a ban may claim its end again
        with pytest.raises(OptionError, match=r"tokens: expected token ids"):
            stream.append([-1])
        list(stream)
        assert stream.text == "abababab"


def test_tokens_may_come_before_the_first_one() -> None:
    chatter = Chatter(lambda message: "abcd")
    with chatter.lm.stream(PROMPT) as stream:
        stream.append(ids(chatter, "ZZ"))
        list(stream)
        assert stream.text == "ZZcd"
    with pytest.raises(StateError, match="closed"):
        stream.append([5])
