"""Combinations that once broke a promise, each by name."""

from __future__ import annotations

from typing import Any

import pytest

from mlxgen import Choice, HookError, MlxgenError, PostSamplingResult, Regex, Session
from tests.fakes.speaking import PROMPT, Speaker, reciter


def test_a_hook_that_insists_on_a_banned_token_is_an_error_and_no_endless_loop() -> None:
    def insist(result: PostSamplingResult) -> None:
        if result.position == 1:
            result.sampled_token = ord("x")

    with pytest.raises(HookError, match="ban excludes"):
        reciter(list("abc")).lm.generate(PROMPT, banned="x", hooks=insist)


def closer(**options: Any) -> Speaker:
    def say(self: Speaker, generated: list[int]) -> list[int]:
        return [ord("{")] if not generated else [ord("a"), ord("}"), ord("b")]

    return Speaker([], say, **options)


def test_closing_gives_up_where_its_way_is_banned() -> None:
    result = closer().lm.generate(
        PROMPT, filters=[Regex(r"\{a{1,50}\}")], banned="}", close_json=True, max_tokens=8
    )
    assert "excluded" in result.usage.incomplete
    assert result.text == "{aaaaaaa"


def test_closing_goes_another_way_where_a_hook_excludes_a_forced_step() -> None:
    def no_brace(result: PostSamplingResult) -> None:
        if result.sampled_token == ord("}"):
            result.resample, result.exclude = True, [ord("}")]

    result = closer().lm.generate(
        PROMPT,
        filters=[Regex(r"\{a{1,50}(\}|;)")],
        hooks=no_brace,
        close_json=True,
        max_tokens=8,
    )
    assert result.text == "{aaaaaa;"
    assert not result.usage.incomplete


def test_one_excluded_step_does_not_end_closing() -> None:
    def not_yet(result: PostSamplingResult) -> None:
        if result.sampled_token == ord("}") and result.position < 5:
            result.resample, result.exclude = True, [ord("}")]

    result = closer().lm.generate(
        PROMPT,
        filters=[Regex(r"\{a{1,50}\}")],
        hooks=not_yet,
        close_json=True,
        max_tokens=8,
    )
    assert result.text == "{aaaaaa}"
    assert not result.usage.incomplete


def test_a_text_without_an_end_in_reach_says_so() -> None:
    result = closer().lm.generate(
        PROMPT, filters=[Regex(r"\{a{40,50}\}")], close_json=True, max_tokens=8
    )
    assert "no valid end was found" in result.usage.incomplete
    stopped = closer().lm.generate(
        PROMPT, filters=[Regex(r"\{a{3,50}\}")], close_json=True, max_tokens=9, stop="{aa"
    )
    assert "ended before its valid end" in stopped.usage.incomplete


def test_a_session_closes_token_by_token_and_loses_none() -> None:
    speaker = closer()
    session = Session(
        speaker.tokenizer,
        prompt=PROMPT,
        filters=[Regex(r"\{a{1,50}\}xyz")],
        close_json=True,
        max_tokens=10,
    )
    chunks = []
    while session.finish_reason is None:
        held = tuple(session.history)
        wanted = speaker.model.script(held)
        logits = [-50.0] * speaker.vocabulary.size
        for rank, token in enumerate(wanted):
            logits[token] = -float(rank)
        chunks.append(session.push_logits(logits))
    assert [c.index for c in chunks] == list(range(10))
    assert "".join(c.text for c in chunks) == session.text == "{aaaaa}xyz"


def test_after_any_error_a_rewind_of_nothing_makes_the_stream_usable() -> None:
    for error in (ValueError, KeyboardInterrupt):
        failed: list[int] = []

        def fail(
            result: PostSamplingResult, kind: type[BaseException] = error, seen: list[int] = failed
        ) -> None:
            if result.position == 2 and not seen:
                seen.append(1)
                raise kind

        stream = reciter(list("abcdef")).lm.stream(PROMPT, hooks=fail)
        with pytest.raises((MlxgenError, KeyboardInterrupt)):
            list(stream)
        stream.rewind(tokens=0)
        assert stream.text + "".join(c.text for c in stream) == "abcdef"


def test_the_consumers_own_rewind_owes_no_retraction() -> None:
    stream = reciter(list("abcdef")).lm.stream(PROMPT, allow_retract=True)
    for _ in range(4):
        next(stream)
    stream.rewind(tokens=2)
    assert next(stream).retract == 0
    assert stream.text == "abc"


def test_closing_waits_for_healing() -> None:
    def say(self: Speaker, generated: list[int]) -> list[int]:
        return [self.token("xyz"), self.token("xy"), ord("z"), ord("a")]

    speaker = Speaker(["xy", "xyz", "ab"], say, prompt_length=1)
    result = speaker.lm.generate(
        [ord("a"), speaker.token("xy")],
        heal=True,
        close_json=True,
        filters=[Choice(["zab", "zabab"])],
        max_tokens=4,
    )
    assert result.text in ("zab", "zabab")


def test_a_forced_run_ends_where_a_hook_keeps_a_token_from_the_filters() -> None:
    def withhold(result: PostSamplingResult) -> None:
        result.feed_filters = result.position != 0

    result = reciter(["a"]).lm.generate(
        PROMPT, filters=[Choice(["xyz"])], hooks=withhold, max_tokens=8
    )
    assert result.text == "xxyz"


def test_a_generation_with_ignored_ends_goes_on_from_any_prefix_of_itself() -> None:
    speaker = reciter(["a", "<end>", "b", "c"])
    options: dict[str, Any] = {"ignore_eos": True, "max_tokens": 5}
    whole = speaker.lm.generate(PROMPT, **options)
    for count in range(5):
        rest = speaker.lm.generate(PROMPT, prefix=whole.tokens[:count], **options)
        assert rest.tokens == whole.tokens


def test_a_closed_stream_gives_nothing_that_was_ready() -> None:
    stream = reciter([]).lm.stream(PROMPT, filters=[Choice(["yes"])])
    next(stream)
    stream.close()
    assert list(stream) == []


@pytest.mark.slow
def test_holding_many_tokens_back_delivers_the_same_text() -> None:
    pieces = list("abcdefghij") * 20
    for hold in (0, 1, 7, 150, 1000):
        chunks = list(reciter(pieces).lm.stream(PROMPT, hold_tokens=hold, banned="xx"))
        assert "".join(c.text for c in chunks) == "".join(pieces)
        assert [c.index for c in chunks] == list(range(201))
