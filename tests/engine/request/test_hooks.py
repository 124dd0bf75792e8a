"""Hooks: what they see, how far they may go back, and what they may not ask for; what comes of the
rest is in the table of generations."""

from __future__ import annotations

from typing import Any

import pytest

from mlxgen import HookError, MlxgenError, PostSamplingResult, Regex, Rejected, RewindError
from mlxgen.tokens import Token
from tests.fakes.speaking import PROMPT, Speaker, endless, reciter, talker

from ..kit import asks

A, B, C, D, X = b"abcdx"


def say(speaker: Speaker, **options: Any) -> str:
    return speaker.lm.generate(PROMPT, **options).text


def told(speaker: Speaker, **options: Any) -> dict[int, tuple[Rejected, ...]]:
    chunks = speaker.lm.stream(PROMPT, **options)
    return {chunk.index: chunk.rejected for chunk in chunks if chunk.rejected}


# ---- what they see -----------------------------------------------------------------------------


def test_a_hook_sees_the_final_probabilities() -> None:
    seen: list[PostSamplingResult] = []

    def look(result: PostSamplingResult) -> None:
        seen.append(result)
        assert result.sampled_prob == pytest.approx(float(result.candidate_probs[0]), rel=1e-4)

    def script(self: Speaker, generated: list[int]) -> dict[int, float]:
        return {A: 1.0, B: 0.0} if not generated else {self.end: 1.0}

    say(Speaker([], script), hooks=[look], temperature=0.5, top_k=2, seed=4)
    first, second = seen
    assert (first.position, first.attempt, second.position) == (0, 0, 1)
    assert list(first.candidate_tokens[:2]) == [A, B]
    assert first.candidate_probs[0] == pytest.approx(1 / (1 + 2.718281828**-2), rel=1e-4)
    assert first.logits is not None and first.logits[A] == 1.0


def test_a_hook_sees_the_text_and_forced_tokens_as_certain() -> None:
    texts, certain = [], []
    say(reciter(["a", 0xC3, 0xA9]), hooks=lambda r: texts.append((r.text, r.text_after)))
    assert texts == [("", "a"), ("a", "a"), ("a", "aé"), ("aé", "aé")]
    say(
        reciter(["a"]),
        filters=[Regex("yes")],
        hooks=lambda r: certain.append((r.sampled_prob, r.logits, r.is_forced)),
    )
    assert certain == [(1.0, None, True)] * 3


@pytest.mark.parametrize("options", [{}, {"hold_tokens": 3}, {"allow_retract": True}])
def test_a_hook_is_told_how_far_it_may_go_back(options: dict[str, Any]) -> None:
    held = options.get("hold_tokens", 10 if options else 0)
    most = [min(position, held) + 1 for position in range(7)]
    for more in (0, 1):
        back, seen = asks({(6, 0): {"rewind": most[6] + more}}), list[int]()
        hooks: Any = [lambda result, seen=seen: seen.append(result.can_rewind), back]
        stream = reciter(list("abcdefghij")).lm.stream(PROMPT, hooks=hooks, **options)
        if more:
            with pytest.raises(RewindError) as error:
                list(stream)
            assert error.value.possible == most[6]
        else:
            list(stream)
            assert stream.text == "abcdefghij"
        assert seen[:7] == most


def test_a_hook_says_how_warm_the_next_draw_is_and_no_other() -> None:
    lm = Speaker([], lambda self, generated: {A: 0.5, B: 0.0}).lm
    cold = asks({(0, 0): {"resample": True, "temperature": 0.0}})
    options: dict[str, Any] = {"temperature": 1.0, "max_tokens": 2}
    texts = [lm.generate(PROMPT, hooks=cold, seed=seed, **options).text for seed in range(20)]
    assert len({text[0] for text in texts}) == 1 < len({text[1] for text in texts})


def test_a_drafted_token_that_the_model_did_not_draw_is_named_with_its_drafter() -> None:
    options: dict[str, Any] = {"max_tokens": 6, "draft": "ngram", "prediction": "?abcxyz"}
    assert told(endless(), **options, top_logprobs=0) == {3: (Rejected(X, "draft", "text"),)}
    assert told(endless(), **options) == {}


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

    chunks = list(reciter(list("ab(cd)ef(g")).lm.stream(PROMPT, hooks=[brackets], **options))
    assert "".join(chunk.text for chunk in chunks) == "ab(cd)ef(g" and back == [4]
    assert [chunk.index for chunk in chunks] == [*range(11)]


def test_a_rewind_that_goes_too_far_names_how_far_is_possible_and_what_to_do() -> None:
    def run(**options: Any) -> str:
        wishes = [(12, 5), (9, 4)]  # one after the other: where, and how far back

        def back(result: PostSamplingResult) -> None:
            if wishes and result.position == wishes[0][0]:
                result.rewind = wishes.pop(0)[1]

        return say(reciter(list("abcdefghijklmno")), hooks=back, **options)

    with pytest.raises(RewindError, match=r"only 2 .* hold_tokens=6 \(it is 4\)"):
        run(hold_tokens=4)
    assert run(hold_tokens=6) == run(allow_retract=True) == "abcdefghijklmno"
    speaker = reciter(list("abcdef"))
    asked = {"hooks": asks({2: {"rewind": 3}}), "prefix": speaker.tokens("ab")}
    with pytest.raises(RewindError, match=r"only 1 .* after the prefix of 2; .* can_rewind=1$"):
        say(speaker, allow_retract=True, **asked)


def test_a_filter_goes_back_over_what_was_withheld_from_it() -> None:
    unseen = asks({n: {"sampled_token": ord(" "), "feed_filters": False} for n in (1, 3)})
    stream = endless().lm.stream(PROMPT, filters=[Regex("[a-z]{3}")], hooks=unseen)
    assert "".join(chunk.text for chunk in stream) == "a c e"
    stream.rewind(to=2)
    assert "".join(chunk.text for chunk in stream) == "c e" and stream.text == "a c e"


# ---- what they may not -------------------------------------------------------------------------


NONSENSE: list[dict[str, Any]] = [
    *({"hold": hold} for hold in (-1, 1.5, True)),
    *({"exclude": wrong, "resample": True} for wrong in (5, "ab", ["a"], [True], [1.5], None)),
    *({"rewind": -1}, {"sampled_token": 10**6}, {"put": [10**6]}),
    {"temperature": -1.0, "resample": True},
]


def test_a_wish_that_makes_no_sense_is_an_error_of_the_hook() -> None:
    for wish in NONSENSE:
        with pytest.raises(HookError, match=next(iter(wish))):
            say(reciter(["a"]), hooks=asks({0: wish}))


def test_what_a_hook_wants_against_a_ban_or_a_filter_is_an_error() -> None:
    with pytest.raises(HookError, match="ban excludes"):
        say(reciter(list("abc")), banned="x", hooks=asks({1: {"sampled_token": X}}))
    with pytest.raises(HookError, match="after position 0, which the filters"):
        say(endless(), hooks=asks({0: {"put": [ord("1")]}}), filters=[Regex("[a-z]+")])
    with pytest.raises(MlxgenError):
        say(endless(), hooks=asks({1: {"sampled_token": ord("1")}}), filters=[Regex("[a-z]+")])


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


# ---- what chunks report ------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [{"top_logprobs": 0}, {"top_candidates": 1}])
def test_chunks_tell_how_likely_a_token_was_after_everything(asked: dict[str, Any]) -> None:
    def say(self: Speaker, generated: list[Token]) -> dict[Token, float]:
        return {A: 0.0, B: 0.0, C: -100.0}

    lm = Speaker([], say).lm

    def probs(**more: Any) -> list[Any]:
        batch = lm.batch([PROMPT] * 2, max_tokens=3, temperature=1.0, seed=1, **more).run()
        each: list[list[Any]] = [[c.prob and round(c.prob, 3) for c in one.chunks] for one in batch]
        assert each[0] == each[1]
        return each[0]

    assert probs() == [None] * 3
    assert probs(**asked) == [0.5] * 3
    assert probs(**asked, filters=[Regex("a{3}|a{2}b")]) == [1, 1, 0.5]


def test_logprobs_are_the_models_own_and_alternatives_that_filters_forbid_are_named() -> None:
    chunk = next(reciter(["a"]).lm.stream(PROMPT, top_logprobs=3, temperature=0.5))
    assert chunk.logprob == pytest.approx(0.0, abs=1e-3)
    assert chunk.top[0].token == A and len(chunk.top) == 3 and chunk.forbidden == ()
    bare = next(reciter(["a"]).lm.stream(PROMPT))
    assert (bare.logprob, bare.top) == (None, ())
    lm = talker({"": ["a", "b", "c"], "b": ["b", "d"]}).lm
    first, second = list(lm.stream(PROMPT, filters=Regex("b[de]"), top_logprobs=3))[:2]
    assert (first.token, first.forced, second.forced) == (B, True, False)
    assert first.forbidden == tuple(other for other, _ in first.top if other != B)
    assert B in second.forbidden and D not in second.forbidden
