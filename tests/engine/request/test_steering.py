"""Taking tokens back: bans, hooks, rewinds by the consumer, and forks."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mlxgen import (
    DeadEndError,
    HookError,
    OptionError,
    PostSamplingResult,
    Regex,
    RewindError,
    Session,
    StateError,
)
from tests.fakes.speaking import PROMPT, Speaker, endless, reciter, talker


def say(speaker: Speaker, **options: Any) -> str:
    return speaker.lm.generate(PROMPT, **options).text


# ---- bans


def test_a_ban_excludes_the_token_with_its_first_character_and_no_innocent_one() -> None:
    speaker = talker(
        {"": ["so"], "so": [" so"], "so so": [" sad", " good"], "so good": [], "so so good": []}
    )
    assert say(speaker) == "so so sad"
    # " so" at the second place holds the first character of " so sad": it goes, "so" stays.
    other = talker({"": ["so"], "so": [" so", " good"], "so so": [" sad"]})
    assert say(other, banned=" so sad") == "so good"
    # "so sad" begins inside the second " so".
    assert say(other, banned="so sad") == "so good"
    # Only the last word is banned: only that is taken back.
    assert say(speaker, banned=" sad") == "so so good"


def test_text_of_a_possible_ban_is_never_delivered() -> None:
    speaker = talker({"": ["a"], "a": ["b", "x"], "ab": ["c"], "ax": ["d"]})
    chunks = list(speaker.lm.stream(PROMPT, banned=["bc"]))
    assert [c.text for c in chunks][:3] == ["a", "x", "d"]
    assert [c.index for c in chunks] == [0, 1, 2, 3]


def test_a_ban_may_be_a_compiled_expression_with_flags() -> None:
    speaker = talker({"": ["x"], "x": ["AB", "y"], "xAB": ["c"]})
    assert say(speaker, banned=[re.compile("ab+c", re.IGNORECASE)]) == "xy"
    assert say(speaker, banned=["abc"]) == "xABc"


def test_bans_that_every_text_runs_into_end_in_an_error_that_says_so() -> None:
    speaker = endless()
    stream = speaker.lm.stream(PROMPT, banned=[re.compile("(?s).{9}")], max_tokens=50)
    with pytest.raises(DeadEndError, match=r"bans have taken back \d+ draws of a text .*ban less"):
        for _ in stream:
            pass
    assert stream.usage.rewound_tokens < 2_000
    stream.rewind(to=0)  # the account begins anew, and the stream can be used
    with pytest.raises(DeadEndError, match="bans have taken back"):
        for _ in stream:
            pass


def test_an_expression_whose_search_has_no_end_fails_its_row_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mlxgen.text.expression.SECONDS", 0.05)
    speaker = reciter([*"aaa", "a" * 60, "c"], extra=["a" * 60])
    slow = re.compile("(a|aa)+b")
    with speaker.lm.stream(PROMPT, banned=[slow]) as stream:
        with pytest.raises(OptionError, match=r"banned: '\(a\|aa\)\+b' takes more than"):
            for _ in stream:
                pass
        assert stream.tokens == []  # all of it may still be banned
        stream.rewind(to=0)
    batch = speaker.lm.batch([PROMPT, PROMPT], each=[{"banned": slow}, {}])
    with pytest.raises(OptionError, match="takes more than"):
        for _ in batch:
            pass
    for _ in batch:
        pass
    assert batch.results[0] is None and batch.results[1] is not None
    assert batch.results[1].text == "a" * 63 + "c"


def test_a_ban_of_a_character_split_over_tokens_goes_back_to_its_first_byte() -> None:
    smile = "😀".encode()

    def script(self: Speaker, generated: list[int]) -> list[int]:
        at = len(generated)
        if generated[:1] == [ord("n")] or at >= 4:
            return [self.end]
        return [smile[at], ord("n")]

    speaker = Speaker([], script)
    assert say(speaker) == "😀"
    result = speaker.lm.generate(PROMPT, banned="😀")
    assert result.text == "n"
    assert result.usage.rewound_tokens == 3


def test_a_position_where_everything_is_banned_is_given_up_with_an_error() -> None:
    speaker = talker({"": ["a"]})
    everything = re.compile(r"(?s).")
    with pytest.raises(DeadEndError, match="position 0"):
        say(speaker, banned=[everything], min_tokens=3)


def test_a_ban_that_completes_only_at_the_end_still_works_on_the_last_token() -> None:
    speaker = talker({"": ["x"], "x": ["a", "c"], "xa": ["b"]})
    assert say(speaker, banned="ab", max_tokens=3) == "xc"


def test_a_ban_that_waits_for_the_end_of_the_text_still_works() -> None:
    speaker = talker({"": ["so"], "so": [" sad", " good"], "so good": []})
    result = speaker.lm.generate(PROMPT, banned=[re.compile(r"sad$")])
    assert result.text == "so good"


# ---- hooks


def test_a_hook_sees_the_final_probabilities() -> None:
    seen: list[PostSamplingResult] = []
    texts: list[str] = []

    def look(result: PostSamplingResult) -> None:
        seen.append(result)
        texts.append(result.text)
        assert result.sampled_prob == pytest.approx(float(result.candidate_probs[0]), rel=1e-4)

    def script(self: Speaker, generated: list[int]) -> dict[int, float]:
        return {ord("a"): 1.0, ord("b"): 0.0} if not generated else {self.end: 1.0}

    say(Speaker([], script), hooks=[look], temperature=0.5, top_k=2, seed=4)
    first = seen[0]
    assert (first.position, first.attempt) == (0, 0)
    assert texts == ["", "a"]
    assert list(first.candidate_tokens[:2]) == [ord("a"), ord("b")]
    assert first.candidate_probs[0] == pytest.approx(1 / (1 + 2.718281828**-2), rel=1e-4)
    assert first.logits is not None and first.logits[ord("a")] == 1.0
    assert (seen[1].position, len(seen)) == (1, 2)


def test_a_hook_may_put_another_token_and_the_cache_follows() -> None:
    speaker = talker({"": ["a"], "a": ["b"], "ax": ["y"], "axy": ["z"]})

    def swap(result: PostSamplingResult) -> None:
        if result.text == "a":
            result.sampled_token = ord("x")
            assert result.sampled_prob < 0.5

    assert say(speaker, hooks=swap) == "axyz"


def test_a_hook_may_draw_again_with_exclusions_and_a_temperature_for_that_draw() -> None:
    speaker = talker({"": ["a", "b", "c"], "c": ["d"]})
    attempts = []

    def decline(result: PostSamplingResult) -> None:
        if result.position == 0:
            attempts.append((result.attempt, result.sampled_token))
            if result.sampled_token != ord("c"):
                result.resample = True
                result.exclude = {ord("a"), result.sampled_token}

    result = speaker.lm.generate(PROMPT, hooks=[decline])
    assert result.text == "cd"
    assert attempts == [(0, ord("a")), (1, ord("b")), (2, ord("c"))]
    assert result.chunks[0].attempts == 2
    assert result.usage.redraws == 2


def test_a_hook_that_is_never_content_gets_its_draws_and_then_the_last_one_stands() -> None:
    calls = []

    def never(result: PostSamplingResult) -> None:
        calls.append(result.position)
        result.resample = True

    result = talker({"": ["a"]}).lm.generate(PROMPT, hooks=never, max_resample=3, max_tokens=2)
    assert calls == [0] * 4 + [1] * 4
    assert [c.exhausted for c in result.chunks] == [True, True]
    assert result.chunks[0].attempts == 3


def test_declining_never_changes_what_the_others_see() -> None:
    def stubborn(result: PostSamplingResult) -> None:
        result.resample = result.attempt < 2

    speaker = reciter(["a", "st", "op", "b"])
    plain = speaker.lm.generate(PROMPT, stop="stop", temperature=0.0)
    again = speaker.lm.generate(PROMPT, stop="stop", temperature=0.0, hooks=stubborn)
    assert (again.text, again.tokens, again.stop) == (plain.text, plain.tokens, plain.stop)


def test_a_rewind_behind_delivered_text_names_how_far_back_is_possible() -> None:
    def back(result: PostSamplingResult) -> None:
        if result.position == 3:
            result.rewind = 3

    speaker = reciter(list("abcdef"))
    stream = speaker.lm.stream(PROMPT, hooks=back)
    with pytest.raises(RewindError, match="only 1") as error:
        list(stream)
    assert error.value.possible == 1
    with pytest.raises(StateError):
        next(stream)


@pytest.mark.parametrize("options", [{}, {"draft": "ngram"}, {"stop": ["x"]}, {"banned": ["x"]}])
def test_a_hook_holds_back_what_it_may_take_back(options: dict[str, Any]) -> None:
    back: list[int] = []

    def brackets(result: PostSamplingResult) -> None:
        opened = result.text_after.rfind("(")
        inside = result.text_after[opened:] if opened >= 0 else ""
        if inside and ")" not in inside:
            result.hold = len(inside)
        elif inside.endswith(")") and not back:
            assert result.can_rewind >= len(inside)
            result.rewind = len(inside)
            back.append(result.rewind)

    speaker = reciter(list("ab(cd)ef(g"))
    held = [(c.text, c.index) for c in speaker.lm.stream(PROMPT, hooks=[brackets], **options)]
    assert "".join(text for text, _ in held) == "ab(cd)ef(g" and back == [4]
    assert [index for _, index in held] == [*range(11)]


def test_what_a_hook_holds_is_delivered_when_it_lets_go_and_at_the_end() -> None:
    def until(result: PostSamplingResult) -> None:
        result.hold = 0 if result.position == 5 else 99

    speaker = reciter(list("abcdefgh"))
    stream = speaker.lm.stream(PROMPT, hooks=[until])
    seen = []
    for chunk in stream:
        seen.append((chunk.index, speaker.model.passes))
    assert seen[0][1] > 5 and seen[6][1] > 8 and len(seen) == 9
    assert say(reciter(list("abcdefgh")), hooks=[until]) == "abcdefgh"


@pytest.mark.parametrize("hold", [-1, 1.5, True])
def test_what_is_held_is_a_number_of_tokens(hold: Any) -> None:
    def wrong(result: PostSamplingResult) -> None:
        result.hold = hold

    with pytest.raises(HookError, match="hold"):
        list(reciter(["a"]).lm.stream(PROMPT, hooks=[wrong]))


def test_hold_tokens_makes_room_for_a_hooks_rewind() -> None:
    speaker = talker({"": ["a"], "a": ["b"], "ab": ["c"], "abc": ["d"], "x": ["y"], "xy": []})
    done: list[int] = []

    def back(result: PostSamplingResult) -> None:
        if result.position == 2 and not done:
            done.append(1)
            result.rewind, result.exclude = 3, [ord("a")]
        elif result.position == 0 and done:
            result.sampled_token = ord("x")

    chunks = list(speaker.lm.stream(PROMPT, hooks=back, hold_tokens=2))
    assert "".join(c.text for c in chunks) == "xy"
    assert [c.index for c in chunks] == [0, 1, 2]
    assert all(c.retract == 0 for c in chunks)


def test_the_advice_of_a_rewind_that_goes_too_far_is_right_also_after_earlier_ones() -> None:
    def run(**options: Any) -> str:
        wishes = [(12, 5), (9, 4)]  # one after the other: where, and how far back

        def back(result: PostSamplingResult) -> None:
            if wishes and result.position == wishes[0][0]:
                result.rewind = wishes.pop(0)[1]

        return say(reciter(list("abcdefghijklmno")), hooks=back, **options)

    with pytest.raises(RewindError, match=r"only 2 .* hold_tokens=6 \(it is 4\)") as error:
        run(hold_tokens=4)
    assert error.value.possible == 2
    with pytest.raises(RewindError):
        run(hold_tokens=5)
    assert run(hold_tokens=6) == "abcdefghijklmno"
    assert run(allow_retract=True) == "abcdefghijklmno"


@pytest.mark.parametrize("options", [{}, {"hold_tokens": 3}, {"allow_retract": True}])
def test_a_hook_is_told_how_far_it_may_go_back(options: dict[str, Any]) -> None:
    def run(wish: int) -> list[int]:
        seen: list[int] = []
        due = [wish]

        def back(result: PostSamplingResult) -> None:
            seen.append(result.can_rewind)
            if result.position == 6 and due:
                result.rewind = due.pop() + result.can_rewind

        assert (
            say(reciter(list("abcdefghij")), hooks=back, max_tokens=10, **options) == "abcdefghij"
        )
        return seen

    seen = run(0)
    with pytest.raises(RewindError) as error:
        run(1)
    assert error.value.possible == seen[6]
    assert seen[:7] == [
        min(position, options.get("hold_tokens", 10 if options else 0)) + 1 for position in range(7)
    ]


def test_a_rewind_into_the_prefix_is_not_blamed_on_the_delivery() -> None:
    def back(result: PostSamplingResult) -> None:
        result.rewind = 3

    speaker = reciter(list("abcdef"))
    prefix = speaker.tokens("ab")
    with pytest.raises(RewindError, match=r"only 1 .* after the prefix of 2; .* can_rewind=1$"):
        say(speaker, hooks=back, allow_retract=True, prefix=prefix)


def test_a_session_tells_hooks_how_far_they_may_go_back() -> None:
    seen: list[int] = []
    session = Session(
        reciter(["a"]).tokenizer, hooks=lambda r: seen.append(r.can_rewind), hold_tokens=1
    )
    for token in b"abcd":
        session.push_token(token)
    assert seen == [1, 2, 2, 2]


@pytest.mark.parametrize("draft", ["off", "ngram"])
@pytest.mark.parametrize("wish", [{"resample": True}, {"rewind": 1}])
def test_a_forced_token_that_a_hook_excludes_stands_and_is_exhausted(
    wish: dict[str, Any], draft: str
) -> None:
    def never_b(result: PostSamplingResult) -> None:
        if result.sampled_token == ord("b"):
            result.exclude = [ord("b")]
            for name, value in wish.items():
                setattr(result, name, value)

    chunks = list(
        reciter(["a"]).lm.stream(PROMPT, filters=Regex("abcb"), hooks=never_b, draft=draft)
    )
    assert "".join(chunk.text for chunk in chunks) == "abcb"
    assert [chunk.exhausted for chunk in chunks] == [False, True, False, True]
    assert [chunk.attempts for chunk in chunks] == [0, 0, 0, 0]


def test_a_rewind_to_a_forced_token_that_it_excludes_is_done_and_says_so() -> None:
    asked: list[int] = []

    def back(result: PostSamplingResult) -> None:
        if result.sampled_token == ord("d") and not asked:
            asked.append(result.position)
            result.rewind, result.exclude = 2, [ord("b")]

    chunks = list(
        reciter(["a"]).lm.stream(PROMPT, filters=Regex("ab[cd]"), hooks=back, hold_tokens=3)
    )
    assert (len(asked), "".join(chunk.text for chunk in chunks)) in {(0, "abc"), (1, "abd")}
    speaker = talker({"a": ["b"], "ab": ["d", "c"]})
    stream = speaker.lm.stream(PROMPT, filters=Regex("ab[cd]"), hooks=back, hold_tokens=3)
    asked.clear()
    chunks = list(stream)
    assert [chunk.token for chunk in chunks] == list(b"abd")
    assert [chunk.exhausted for chunk in chunks] == [False, True, False]
    assert stream.usage.rewound_tokens == 1


def test_excluding_every_token_leaves_the_one_that_was_drawn() -> None:
    speaker = reciter(["a"])

    def picky(result: PostSamplingResult) -> None:
        result.resample, result.exclude = True, range(2 * speaker.lm.vocab_size)

    chunks = list(speaker.lm.stream(PROMPT, hooks=picky, max_tokens=1))
    assert [(chunk.text, chunk.exhausted) for chunk in chunks] == [("a", True)]


@pytest.mark.parametrize("wrong", [5, "ab", ["a"], [True], [1.5], None])
def test_what_a_hook_cannot_exclude_is_an_error_of_the_hook(wrong: Any) -> None:
    def odd(result: PostSamplingResult) -> None:
        result.resample, result.exclude = True, wrong

    with pytest.raises(HookError, match="exclude"):
        say(reciter(["a"]), hooks=odd)


def test_retractions_say_what_to_delete() -> None:
    speaker = talker({"": ["a"], "a": ["b"], "ab": ["c"], "ax": ["y"], "axy": []})
    done: list[int] = []

    def back(result: PostSamplingResult) -> None:
        if result.position == 2 and not done:
            done.append(1)
            result.rewind = 2
        elif result.position == 1 and done:
            result.sampled_token = ord("x")

    shown = ""
    stream = speaker.lm.stream(PROMPT, hooks=back, allow_retract=True)
    for chunk in stream:
        shown = shown[: len(shown) - chunk.retract] + chunk.text
        assert shown == stream.text
    assert shown == "axy"
    assert speaker.lm.generate(PROMPT, hooks=back, allow_retract=True).text in ("abc", "axy")


def test_bans_retract_too_where_that_is_allowed() -> None:
    speaker = talker({"": ["a"], "a": ["b", "x"], "ab": ["c"], "ax": []})
    chunks = list(speaker.lm.stream(PROMPT, banned="abc", allow_retract=True))
    assert [c.text for c in chunks[:2]] == ["a", "b"]
    assert sum(c.retract for c in chunks) == 2


def test_what_a_hook_raises_ends_the_stream_with_its_name() -> None:
    def broken(result: PostSamplingResult) -> None:
        raise ZeroDivisionError("oops")

    with pytest.raises(HookError, match=r"broken.*oops"):
        say(reciter(["a"]), hooks=broken)


@pytest.mark.parametrize("wish", [{"rewind": -1}, {"sampled_token": 10**6}, {"temperature": -1.0}])
def test_a_wish_that_makes_no_sense_is_an_error(wish: dict[str, Any]) -> None:
    def odd(result: PostSamplingResult) -> None:
        for name, value in wish.items():
            setattr(result, name, value)

    with pytest.raises(HookError, match=next(iter(wish))):
        say(reciter(["a"]), hooks=odd)


def test_a_hook_sees_the_text_with_the_sampled_token_as_far_as_it_is_complete() -> None:
    seen = []
    say(reciter(["a", 0xC3, 0xA9]), hooks=lambda r: seen.append((r.text, r.text_after)))
    assert seen == [("", "a"), ("a", "a"), ("a", "aé"), ("aé", "aé")]


def test_a_fork_copies_the_hooks_that_can_be_copied() -> None:
    class Counter:
        def __init__(self, count: int = 0) -> None:
            self.count = count

        def __call__(self, result: PostSamplingResult) -> None:
            self.count += 1

        def fork(self) -> Counter:
            return Counter(self.count)

    counter, alone = Counter(), Counter()
    lm = reciter(list("abcd")).lm
    list(lm.stream(PROMPT, hooks=alone))
    stream = lm.stream(PROMPT, hooks=counter)
    next(stream)
    (twin,) = stream.fork()
    list(twin)
    assert counter.count < alone.count
    list(stream)
    assert counter.count == alone.count


# ---- rewinds by the consumer


def test_the_consumer_may_rewind_between_two_chunks() -> None:
    speaker = reciter(["a", "é", "b", "c"])
    stream = speaker.lm.stream(PROMPT)
    for _ in range(3):
        next(stream)
    stream.rewind(tokens=2)
    assert (stream.text, len(stream.tokens)) == ("a", 1)
    assert "".join(c.text for c in stream) == "ébc"
    assert stream.text == "aébc"
    stream.rewind(to=0)
    assert "".join(c.text for c in stream) == "aébc"


def test_a_rewind_of_a_stream_that_has_ended_goes_on_from_there() -> None:
    speaker = reciter(["a", "st", "op", "x"])
    stream = speaker.lm.stream(PROMPT, stop="stop")
    assert "".join(c.text for c in stream) == "a"
    stream.rewind(tokens=1)
    assert stream.finish_reason is None
    assert [c.stop for c in stream] == ["stop"]
    with pytest.raises(RewindError) as error:
        stream.rewind(tokens=9)
    assert error.value.possible == 3
    assert stream.text == "a"


def test_forks_go_on_by_themselves() -> None:
    speaker = reciter(list("abcdef"))
    stream = speaker.lm.stream(PROMPT, stop="ef")
    next(stream)
    left, right = stream.fork(2)
    next(left)
    right.rewind(to=0)
    assert "".join(c.text for c in right) == "abcd"
    assert "".join(c.text for c in left) == "cd"
    assert "".join(c.text for c in stream) == "bcd"
    assert (left.text, right.text, stream.text) == ("abcd", "abcd", "abcd")
    assert len({left.seed, right.seed, stream.seed}) == 3


def test_a_prefix_is_taken_as_already_generated() -> None:
    speaker = reciter(["a", "st", "op", "b"])
    whole = speaker.lm.generate(PROMPT, stop="stop", max_tokens=4)
    chunks = list(speaker.lm.stream(PROMPT, stop="stop", max_tokens=4, prefix=whole.tokens[:2]))
    assert [c.index for c in chunks] == [2]
    assert chunks[-1].stop == "stop"


def test_text_of_the_prefix_is_never_delivered_again() -> None:
    speaker = reciter(list("abcd"))
    prefix = speaker.tokens("ab")
    stream = speaker.lm.stream(PROMPT, stop="bx", max_tokens=4, prefix=prefix)
    assert next(stream).text == "c"
    stream.rewind(to=2)  # to where the stop could still begin, in the prefix
    assert stream.text == ""
    assert "".join(chunk.text for chunk in stream) == stream.text == "cd"


def test_a_rewind_recomputes_only_what_was_taken_back() -> None:
    speaker = reciter(list("abcdefgh"), prompt_length=40)
    stream = speaker.lm.stream([63] * 40)
    for _ in range(6):
        next(stream)
    before = speaker.model.passes
    stream.rewind(tokens=2)
    next(stream)
    assert [len(fed) for fed in speaker.model.fed[before:]] == [1, 1]


def test_a_ban_that_ends_with_the_text_is_noticed_where_a_stop_cuts_it() -> None:
    choices = {"": ["a "], "a ": ["foo", "bar"], "a foo": ["END"], "a bar": ["END"]}
    speaker = talker(choices)
    assert say(speaker, stop="END") == "a foo"
    assert say(speaker, stop="END", banned=re.compile("foo$")) == "a bar"
    together = talker({"": ["foEND", "a"], "a": ["END"]})
    assert say(together, stop="END", banned=re.compile(r"fo\Z")) == "a"


def test_a_ban_that_begins_in_what_a_consumer_keeps_takes_back_what_came_after_only() -> None:
    speaker = talker({"": ["so"], "so": [" happy", " sad", " dull"]})

    def other(result: PostSamplingResult) -> None:
        if result.position == 1 and result.attempt == 1:
            result.sampled_token = speaker.token(" sad")

    stream = speaker.lm.stream(PROMPT, banned="so sad", hooks=other)
    assert [chunk.token for chunk in stream][:2] == speaker.tokens(["so", " happy"])
    stream.rewind(to=1)
    kept = stream.tokens
    rest = list(stream)
    assert rest[0].index == 1 and not any(chunk.retract for chunk in rest)
    assert stream.tokens[:2] == [*kept, speaker.token(" happy")]
    assert stream.text == "so happy"
