"""What chunks say of the tokens that are not there: forbidden by filters, declined, not drawn."""

from __future__ import annotations

from typing import Any

import pytest

from mlxgen import OptionError, PostSamplingResult, Regex, Rejected
from tests.fakes.speaking import PROMPT, endless, talker


def test_alternatives_that_the_filters_do_not_allow_are_named() -> None:
    speaker = talker({"": ["a", "b", "c"], "b": ["b", "d"]})
    options: dict[str, Any] = {"filters": Regex("b[de]"), "top_logprobs": 3, "draft": "off"}
    first, second = list(speaker.lm.stream(PROMPT, **options))[:2]
    assert (first.token, first.forced) == (ord("b"), True)
    assert first.forbidden == tuple(other for other, _ in first.top if other != ord("b"))
    assert ord("b") in second.forbidden and ord("d") not in second.forbidden
    free, *_ = speaker.lm.stream(PROMPT, top_logprobs=3)
    assert free.forbidden == ()
    unasked, *_ = speaker.lm.stream(PROMPT, filters=Regex("b[de]"))
    assert unasked.forbidden == ()


def test_a_banned_token_is_named_with_its_ban() -> None:
    speaker = talker({"": ["a"], "a": ["b", "x"], "ab": ["c"], "ax": ["d"]})
    chunks = list(speaker.lm.stream(PROMPT, banned=["bc"]))
    assert [chunk.rejected for chunk in chunks[:3]] == [(), (Rejected(ord("b"), "ban", "bc"),), ()]


def test_what_hooks_decline_take_back_and_replace_is_named_where_it_was() -> None:
    speaker = talker({"": ["a"], "a": ["b", "x"], "ab": ["c"], "ax": ["d", "e"], "axe": ["f"]})

    def picky(result: PostSamplingResult) -> None:
        if result.sampled_token == ord("c"):
            result.rewind, result.exclude = 2, [ord("b")]
        elif result.sampled_token == ord("d"):
            result.resample, result.exclude = True, [ord("d")]
        elif result.sampled_token == ord("f"):
            result.sampled_token = ord("g")

    chunks = list(speaker.lm.stream(PROMPT, hooks=picky, hold_tokens=2))
    assert "".join(chunk.text for chunk in chunks) == "axeg"
    told = {chunk.index: chunk.rejected for chunk in chunks if chunk.rejected}
    assert told == {
        1: (Rejected(ord("b"), "hook"),),
        2: (Rejected(ord("d"), "hook"),),
        3: (Rejected(ord("f"), "hook"),),
    }


def test_a_drafted_token_that_the_model_did_not_draw_is_named_with_its_drafter() -> None:
    speaker = endless()
    options: dict[str, Any] = {"max_tokens": 6, "draft": "ngram", "prediction": "?abcxyz"}
    chunks = list(speaker.lm.stream(PROMPT, **options, top_logprobs=0))
    told = {chunk.index: chunk.rejected for chunk in chunks if chunk.rejected}
    assert told == {3: (Rejected(ord("x"), "draft", "text"),)}
    assert chunks[3].token == ord("d")
    silent = speaker.lm.stream(PROMPT, **options)
    assert all(chunk.rejected == () for chunk in silent)


def test_a_prefix_with_a_banned_text_is_refused_as_that() -> None:
    speaker = talker({"": ["a"]})
    with pytest.raises(OptionError, match="'ab', which is banned") as refused:
        next(speaker.lm.stream(PROMPT, banned=["ab"], prefix=speaker.tokens("ab")))
    assert (refused.value.code, refused.value.index) == ("text_banned", 1)


def test_a_prefix_that_cannot_be_gone_on_with_says_why_and_where() -> None:
    speaker = talker({"": ["a"]})
    end = min(speaker.lm.vocabulary.eos)

    def refused(*prefix: int, **options: Any) -> tuple[str | None, int | None]:
        with pytest.raises(OptionError) as error:
            next(speaker.lm.stream(PROMPT, prefix=prefix, **options))
        assert error.value.field == "prefix"
        return error.value.code, error.value.index

    a, b = speaker.tokens("ab")
    assert refused(a, end) == ("text_ended", 1)
    assert refused(a, b, stop=["b"]) == ("text_ended", 1)
    assert refused(a, b, filters=[Regex("a+")]) == ("token_not_allowed", 1)
    assert refused(a, end, filters=[Regex("aab")]) == ("end_not_allowed", 1)
