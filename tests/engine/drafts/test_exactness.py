"""Whoever drafts, and whatever: the text is the one that comes without drafts.

All kinds of drafters work side by side in one batch, on models whose next token depends on the last
one or two: so texts recur often enough to be drafted, and differ often enough for drafts to fail.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import ArraysCache, KVCache

import mlxgen
from mlxgen import Branch, LanguageModel, Rejected
from mlxgen.engine.drafts.drafts import Drafter, Drafts
from mlxgen.engine.options import Options
from mlxgen.engine.step.handle import Handle
from mlxgen.sampling import PostSamplingResult
from mlxgen.tokens import Token
from tests.engine.control_reference import Wild
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import cache_kinds
from tests.fakes.controllers import Recited, check_integrity
from tests.fakes.drafting import Absurd, Broken, Goes, Told, ToldOther
from tests.fakes.speaking import Hall, Speaker

from ...effort import tries

LETTERS = b"abcdefgh"
PROMPT = list(b"abcabdabcab")
CACHES = {"keys": lambda: [KVCache()], "states": lambda: [ArraysCache(1)]}

# ---- who drafts ----------------------------------------------------------------------------------

GIVEN: dict[str, Any] = {"off": "off", "auto": "auto", "text": "ngram", "model": None}
FAILING = ("expects", "propose", "learn")
OWN = ("right", "half right", "nonsense", "absurd", "in turn", *FAILING)
DRAFTS = (*GIVEN, *OWN)


def own(name: str, right: Goes, letters: Sequence[Token] = LETTERS) -> list[Drafter]:
    """Drafters that would be right with ``right``, if they only said so."""

    def half(tokens: list[Token]) -> Token:
        return letters[len(tokens) % len(letters)] if sum(tokens[-4:]) % 3 == 0 else right(tokens)

    def nonsense(tokens: list[Token]) -> Token:
        return (-1, 10**12, 3, 255, -(2**40), letters[0])[len(tokens) * 7 % 6]

    def has(length: int, *, turn: int) -> bool:
        return length % 2 == turn

    match name:
        case "right":
            return [Told(right)]
        case "half right":
            return [Told(half)]
        case "nonsense":
            return [Told(nonsense)]
        case "absurd":
            return [Absurd(half)]
        case "in turn":
            first, second = partial(has, turn=0), partial(has, turn=1)
            return [Told(half, first), ToldOther(right, second), Absurd(half)]
        case _:
            return [Broken(half, name), ToldOther(half)]


def use(lm: LanguageModel, right: Goes, letters: Sequence[Token] = LETTERS) -> None:
    """Have a model use these drafters; ``num_draft_tokens`` says which, as the option cannot."""
    given = lm.runtime.drafts_for

    def drafts_for(options: Options, owner: str = "") -> Drafts:
        number = options.num_draft_tokens
        if not number:
            return given(options, owner)
        return Drafts(own(OWN[number - 1], right, letters), wanted=True)

    lm.runtime.drafts_for = drafts_for  # type: ignore[method-assign]


def asked(lm: LanguageModel, name: str) -> dict[str, Any]:
    """The options that ask for them."""
    if name in OWN:
        return {"num_draft_tokens": 1 + OWN.index(name)}
    return {"draft": GIVEN[name] or lm.draft}


class Company(Hall):
    """Requests with all kinds of drafts in one batch. The model has another one as its draft."""

    def __init__(self, speaker: Speaker, other: Speaker, right: Goes) -> None:
        speaker.lm.draft = other.lm
        use(speaker.lm, right)
        super().__init__(speaker, keep_prefixes=False, max_batch=32, max_queue=512)

    def submit_all(self, **options: Any) -> dict[str, Handle]:
        lm = self.speaker.lm
        return {name: self.submit(PROMPT, **options, **asked(lm, name)) for name in DRAFTS}


# ---- the same text -------------------------------------------------------------------------------


@cache
def weights(a: Token, b: Token) -> dict[Token, float]:
    """The logits of what comes after two tokens."""
    rng = random.Random(1009 * a + b)
    return {letter: 2.0 * rng.gauss(0, 1) for letter in LETTERS}


def babbler(noise: int = 0, **options: Any) -> Speaker:
    """Says what ``weights`` gives; with ``noise``, something else after every so many tokens."""

    def say(self: Speaker, tokens: list[Token]) -> dict[Token, float]:
        a, b = [0, *tokens][-2:]
        return weights(b, a) if noise and len(tokens) % noise == 0 else weights(a, b)

    return Speaker([], say, prompt_length=0, draft="auto", **options)


def likeliest(tokens: list[Token]) -> Token:
    odds = weights(*tokens[-2:])
    return max(odds, key=odds.__getitem__)


def picky(result: PostSamplingResult) -> None:
    """Takes back what it has seen, and wants the next draw to be another than those after it."""
    if result.attempt == 0 and result.position % 5 == 3:
        result.rewind, result.temperature = min(2, result.can_rewind), 3.0
    elif result.attempt == 0 and result.position % 3 == 1:
        result.resample, result.exclude = True, {result.sampled_token}


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "filter": {"filters": mlxgen.Regex("([a-d]{2,5}[e-h]){2,9}")},
    "filter that forces": {"filters": mlxgen.Regex("(abcab|[d-h]xyz|[a-h]x){3,9}")},
    "bans": {"banned": ["ab", "dd", "h"]},
    "hooks": {"hooks": picky, "hold_tokens": 3},
    "hooks and filter": {"hooks": picky, "hold_tokens": 3, "filters": mlxgen.Regex("[a-f]{9,30}")},
    "stops": {"stop": ["de", "fa", "hh"]},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
    "repetitions": {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_penalty_last_n": 30},
    "truncation": {"top_p": 0.8, "top_k": 5, "xtc_probability": 0.5, "xtc_threshold": 0.1},
    "biases": {"logit_bias": {97: 2.0}, "min_tokens": 12},
    "prefix": {"prefix": list(b"abcde")},
    "log-probabilities": {"top_logprobs": 3},
}
SHORT = ("plain", "filter", "bans", "hooks", "penalties")


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_the_text_is_the_same_whoever_drafts(name: str, kind: str, temperature: float) -> None:
    company = Company(babbler(make_cache=CACHES[kind]), babbler(noise=4), likeliest)
    handles = company.submit_all(
        max_tokens=30, seed=5, temperature=temperature, ignore_eos=True, **OPTIONS[name]
    )
    company.finish()
    assert not company.errors
    ends = {
        drafts: (company.texts[handle], handle.request.tokens, handle.request.finish_reason)
        for drafts, handle in handles.items()
    }
    assert ends == dict.fromkeys(DRAFTS, ends["off"])
    if name == "plain" and not temperature:
        assert {d for d in DRAFTS if handles[d].drafts.counts} == {*DRAFTS} - {"off"}
        assert handles["right"].passes < 10 < handles["off"].passes


@pytest.mark.parametrize("kind", CACHES)
@given(numbers=st.lists(st.integers(0, 719), min_size=1, max_size=30), greedy=st.booleans())
@settings(max_examples=tries(60))
def test_a_random_controller_gets_the_same_tokens_whoever_drafts(
    kind: str, numbers: list[int], greedy: bool
) -> None:
    lm = babbler(make_cache=CACHES[kind]).lm
    lm.draft = babbler(noise=4).lm
    use(lm, likeliest)

    def told(drafts: str) -> dict[Any, Any]:
        wild = Wild(tuple(numbers), tuple(LETTERS), lm.vocab_size, list(PROMPT))
        warm = 0 if greedy else 1.0
        run = lm.control(PROMPT, wild, max_tokens=20, seed=5, temperature=warm, **asked(lm, drafts))
        for _ in run:
            check_integrity(run)
        return {name: (each.tokens, each.finish_reason) for name, each in run.results.items()}

    wanted = told("off")
    for drafts in ("text", "model", "right", "half right", "nonsense", "absurd"):
        assert told(drafts) == wanted


def test_usage_that_was_read_does_not_change() -> None:
    lm = babbler().lm
    use(lm, likeliest)
    stream = lm.stream(PROMPT, max_tokens=28, temperature=0, **asked(lm, "right"))
    for _ in range(12):
        next(stream)
    before = stream.usage
    drafts, total = dict(before.drafts), before.drafted_tokens
    list(stream)
    assert total == sum(count.proposed for count in before.drafts.values()) > 0
    assert before.drafts == drafts != stream.usage.drafts


@pytest.mark.parametrize("kind", CACHES)
def test_what_a_controller_samples_needs_no_pass_if_it_was_drafted(kind: str) -> None:
    lm = babbler(make_cache=CACHES[kind]).lm
    use(lm, likeliest)
    free = [Branch(sample_mask=range(lm.vocab_size))]

    def told(drafts: str, count: int = 28) -> tuple[list[Token], mlxgen.Usage, list[str]]:
        run = lm.control(
            PROMPT, Recited(free), max_tokens=count, temperature=0, **asked(lm, drafts)
        )
        drafters = [chunk.drafter for _, chunk in run]
        return list(run.results[()].tokens), run.results[()].usage, drafters

    tokens, plain, _ = told("off")
    drafted, usage, drafters = told("right")
    assert drafted == tokens
    assert plain.forward_passes > 27 > 8 > usage.forward_passes
    assert usage.accepted_draft_tokens == usage.drafted_tokens > 20
    assert drafters.count("told") == usage.accepted_draft_tokens
    for count in range(2, 9):  # also if the text ends among what was drafted
        _, usage, drafters = told("right", count)
        assert drafters.count("told") == usage.accepted_draft_tokens == usage.drafted_tokens
    drafted, usage, _ = told("half right")
    assert drafted == tokens
    assert 0 < usage.accepted_draft_tokens < usage.drafted_tokens


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("name", SHORT)
def test_going_back_and_forking_is_the_same_whoever_drafts(
    name: str, kind: str, temperature: float
) -> None:
    lm = babbler(make_cache=CACHES[kind]).lm
    lm.draft = babbler(noise=4).lm
    use(lm, likeliest)
    given = {"max_tokens": 30, "seed": 5, "temperature": temperature, **OPTIONS[name]}

    def told(drafts: str) -> list[list[Token]]:
        moves, ends = random.Random(name), []
        stream = lm.stream(PROMPT, **given, **asked(lm, drafts))
        for _ in range(5):
            for _ in range(moves.randrange(1, 9)):
                next(stream, None)
            if moves.random() < 0.5:
                (twin,) = stream.fork()
                for _ in twin:
                    pass
                ends.append(list(twin.tokens))
            stream.rewind(tokens=min(moves.randrange(6), len(stream.tokens)))
        for _ in stream:
            pass
        return [*ends, list(stream.tokens)]

    plain = told("off")
    for drafts in DRAFTS:
        assert told(drafts) == plain, drafts


@pytest.mark.slow
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("seed", range(4))
def test_requests_go_back_and_fork_in_a_batch_whoever_drafts(seed: int, kind: str) -> None:
    company = Company(babbler(make_cache=CACHES[kind]), babbler(noise=4), likeliest)
    handles = list(company.submit_all(max_tokens=30, temperature=0, ignore_eos=True).values())
    moves = random.Random(seed)
    while company.scheduler.busy:
        company.steps(moves.randrange(1, 4))
        handle = moves.choice(handles)
        if handle.has_ended:
            continue
        if moves.random() < 0.3:
            handles += company.fork(handle)
        else:
            company.rewind(handle, moves.randrange(handle.request.position + 1))
    assert not company.errors
    assert len(set(company.texts.values())) == 1


def test_a_fork_does_not_know_what_was_drawn_ahead_for_its_next_token() -> None:
    hall = Hall(babbler())
    handle = hall.submit(PROMPT, max_tokens=9)
    hall.steps(4)
    request = handle.request
    request.retries.back(request.position, request.position + 1)
    request.retries.reject(request.position, Rejected(LETTERS[0], "ban"), ban=True)
    twin = request.fork(1)
    assert request.attempt == 1 and request.retries.excluded(request.position)
    assert twin.attempt == 0 and not twin.retries.excluded(twin.position)


KINDS = [kind for kind in cache_kinds() if kind != "concatenating"]  # no model brings these


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_the_same_with_every_kind_of_cache(kind: str, temperature: float) -> None:
    model, make_cache = cache_kinds()[kind]()
    lm = LanguageModel(model, alphabet_tokenizer())
    lm.runtime.make_cache = make_cache  # type: ignore[method-assign]
    prompt = [token % 96 for token in PROMPT]
    given: dict[str, Any] = {"max_tokens": 20, "seed": 3, "temperature": temperature}
    text = [*prompt, *lm.generate(prompt, **given, ignore_eos=True, draft="off").tokens, 0]
    use(lm, lambda tokens: text[min(len(tokens), len(text) - 1)], range(90))
    for name in SHORT:
        options = {**given, **OPTIONS[name]}
        if name == "filter":
            options["filters"] = mlxgen.Regex("[A-Z a-z]{5,60}")
        plain = lm.generate(prompt, **options, draft="off")
        for drafts in ("half right", "absurd", "in turn"):
            result = lm.generate(prompt, **options, **asked(lm, drafts))
            assert (result.tokens, result.text) == (plain.tokens, plain.text), (name, drafts)


STORIES = ("Tell me a story.", "Make a JSON record of a person.")


@pytest.fixture(scope="module")
def demo() -> LanguageModel:
    return mlxgen.load()


def only_head(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the model's own head draft alone."""
    given = lm.runtime.drafts_for

    def drafts_for(options: Options, owner: str = "") -> Drafts:
        drafts = given(options, owner)
        return Drafts([each for each in drafts.drafters if each.name == "head"], wanted=True)

    monkeypatch.setattr(lm.runtime, "drafts_for", drafts_for)


def told(lm: LanguageModel, prompt: mlxgen.Chat, **options: Any) -> list[list[Token]]:
    """A text; the same one after some of it was taken back; and a fork of that."""
    once, stream = lm.generate(prompt, **options).tokens, lm.stream(prompt, **options)
    for _ in range(25):
        next(stream, None)
    stream.rewind(tokens=min(9, len(stream.tokens)))
    (twin,) = stream.fork()
    for _ in (*stream, *twin):
        pass
    return [list(once), list(stream.tokens), list(twin.tokens)]


@pytest.mark.slow
@pytest.mark.parametrize("who", ["head", "auto"])
@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("name", SHORT)
def test_the_text_of_the_demo_model_is_the_same_with_its_head(
    demo: LanguageModel, monkeypatch: pytest.MonkeyPatch, name: str, temperature: float, who: str
) -> None:
    options: dict[str, Any] = {"max_tokens": 50, "seed": 4, "temperature": temperature}
    options |= OPTIONS[name]
    if name == "filter":
        options["filters"] = mlxgen.Regex("[A-Za-z ,.!?]{20,80}")
    if name == "bans":
        options["banned"] = ["the", "a b"]
    prompts = [
        mlxgen.Chat([{"role": "user", "content": text}], template={"enable_thinking": False})
        for text in STORIES
    ]
    alone = [told(demo, prompt, **options, draft="off") for prompt in prompts]
    if who == "head":
        only_head(demo, monkeypatch)
    assert [told(demo, prompt, **options, draft="auto") for prompt in prompts] == alone
    batch = demo.batch(prompts, **options, draft="auto")
    for _ in batch:
        pass
    results = [result for result in batch.results if result is not None]
    assert [list(result.tokens) for result in results] == [once for once, _, _ in alone]
    assert who == "auto" or sum(result.usage.accepted_draft_tokens for result in results) > 0


# ---- the same distribution -----------------------------------------------------------------------

ODDS = {
    ord("a"): (0.1, 0.6, 0.2, 0.1),
    ord("b"): (0.25, 0.05, 0.5, 0.2),
    ord("c"): (0.7, 0.1, 0.1, 0.1),
    ord("d"): (0.3, 0.3, 0.2, 0.2),
}
C = ord("c")
CHI_SQUARED = 39.1  # one in 10,000 is above it, with 12 degrees of freedom
Odds = Mapping[Token, float]


def after(token: Token) -> dict[Token, float]:
    return dict(zip(b"abcd", ODDS.get(token, ODDS[C]), strict=True))


def gambler(temper: float = 1.0) -> Speaker:
    """Draws from ``ODDS`` after the last token."""

    def say(self: Speaker, tokens: list[Token]) -> dict[Token, float]:
        return {t: math.log(p) * temper for t, p in after(tokens[-1]).items()}

    return Speaker([], say, prompt_length=0, draft="auto")


def again(result: PostSamplingResult) -> None:
    if result.attempt == 0 and result.sampled_token == C:
        result.resample = True


def without_c(odds: Odds) -> Odds:
    return {t: p / (1 - odds[C]) * (t != C) for t, p in odds.items()}


def with_c_drawn_again(odds: Odds) -> Odds:
    return {t: p * (t != C) + odds[C] * p for t, p in odds.items()}


LAWS: dict[str, tuple[dict[str, Any], Callable[[Odds], Odds]]] = {
    "plain": ({}, dict),
    "filter": ({"filters": mlxgen.Regex("[abd]{30,}")}, without_c),
    "ban": ({"banned": ["c"]}, without_c),
    "hook": ({"hooks": again}, with_c_drawn_again),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_sampled_tokens_are_as_frequent_as_they_should_be(name: str) -> None:
    options, law = LAWS[name]
    company = Company(
        gambler(), gambler(0.7), lambda tokens: max(b"abcd", key=after(tokens[-1]).__getitem__)
    )
    given: dict[str, Any] = {"max_tokens": 20, "temperature": 1.0, "ignore_eos": True, **options}
    handles = [company.submit_all(seed=seed, **given) for seed in range(20)]
    company.finish()
    for drafts in DRAFTS:
        pairs = Counter(
            pair for row in handles for pair in pairwise([PROMPT[-1], *row[drafts].request.tokens])
        )
        statistic = 0.0
        for last in ODDS:
            seen = sum(pairs[last, token] for token in ODDS)
            for token, p in law(after(last)).items():
                assert p > 0 or not pairs[last, token]
                statistic += (pairs[last, token] - seen * p) ** 2 / (seen * p) if p * seen else 0
        assert statistic < CHI_SQUARED, drafts
