"""Whoever drafts, and whatever: the text is the one that comes without drafts, and comes sooner.

All kinds of drafters work side by side in one batch, on models whose next token depends on the last
one or two: so texts recur often enough to be drafted, and differ often enough for drafts to fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any

import mlx.core as mx
import mlx.utils
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import Branch, Chat, LanguageModel, OptionError, Session
from mlxgen.engine.drafts.drafts import Drafter, Drafts
from mlxgen.engine.limits import Limits
from mlxgen.engine.options import Options
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.engine.step.handle import Handle
from mlxgen.sampling import PostSamplingResult
from mlxgen.tokens import Token
from tests.engine.test_control_laws import Wild
from tests.fakes import alphabet_tokenizer, byte_level_tokenizer
from tests.fakes.architectures import KINDS, of_kind
from tests.fakes.checkpoints import tiny_config, tiny_model
from tests.fakes.controllers import Recited, check_integrity
from tests.fakes.drafting import Absurd, Broken, Goes, Told, ToldOther
from tests.fakes.speaking import Hall, Speaker, letters, reciter

from ...effort import tries
from ..kit import options_for

LETTERS = b"abcdefgh"
PROMPT = list(b"abcabdabcab")
RECURRENT = pytest.mark.parametrize("recurrent", [False, True])

# ---- who drafts -------------------------------------------------------------------------------

GIVEN: dict[str, Any] = {"off": "off", "auto": "auto", "text": "ngram", "model": None}
FAILING = ("expects", "propose", "learn")
OWN = ("right", "half right", "nonsense", "absurd", "in turn", *FAILING)
DRAFTS = (*GIVEN, *OWN)


def own(name: str, right: Goes) -> list[Drafter]:
    """Drafters that would be right with ``right``, if they only said so."""

    def half(tokens: list[Token]) -> Token:
        return LETTERS[len(tokens) % len(LETTERS)] if sum(tokens[-4:]) % 3 == 0 else right(tokens)

    def nonsense(tokens: list[Token]) -> Token:
        return (0, 3, 255, LETTERS[0])[len(tokens) * 3 % 4]

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


def use(lm: LanguageModel, right: Goes) -> None:
    """Have a model use these drafters; ``num_draft_tokens`` says which, as the option cannot."""
    given = lm.runtime.drafts_for

    def drafts_for(options: Options, owner: str = "") -> Drafts:
        number = options.num_draft_tokens
        if not number:
            return given(options, owner)
        return Drafts(own(OWN[number - 1], right), wanted=True)

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


# ---- the same text ----------------------------------------------------------------------------


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


class Watching:
    """Remembers each draw that it was shown, and leaves the rest to another hook."""

    def __init__(self, hook: Callable[[PostSamplingResult], None] | None) -> None:
        self.hook, self.seen = hook, list[tuple[int, int, Token]]()

    def __call__(self, result: PostSamplingResult) -> None:
        assert 0 < result.sampled_prob <= 1
        self.seen.append((result.position, result.attempt, result.sampled_token))
        if self.hook is not None:
            self.hook(result)


OPTIONS = options_for("drafts")


@pytest.mark.parametrize("name", OPTIONS)
@RECURRENT
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_the_text_is_the_same_whoever_drafts(
    name: str, recurrent: bool, temperature: float
) -> None:
    company = Company(babbler(recurrent=recurrent), babbler(noise=4), likeliest)
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


@RECURRENT
@given(numbers=st.lists(st.integers(0, 719), min_size=1, max_size=30), greedy=st.booleans())
@settings(max_examples=tries(60))
def test_a_random_controller_gets_the_same_tokens_whoever_drafts(
    recurrent: bool, numbers: list[int], greedy: bool
) -> None:
    lm = babbler(recurrent=recurrent).lm
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


@RECURRENT
def test_what_a_controller_samples_needs_no_pass_if_it_was_drafted(recurrent: bool) -> None:
    lm = babbler(recurrent=recurrent).lm
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


# ---- every kind of cache, and models that draft for others -------------------------------------

MODELLED = options_for("caches")  # in the few tokens of these models


@cache
def pair(kind: str) -> tuple[LanguageModel, LanguageModel]:
    """A model of a cache kind, and one with slightly different weights to draft for it."""
    models = []
    for noise in (0.0, 0.02):
        models.append(of_kind(kind))
        mx.random.seed(1)
        parameters: Any = mlx.utils.tree_flatten(models[-1].model.parameters())
        shaken = [(name, old + noise * mx.random.normal(old.shape)) for name, old in parameters]
        models[-1].model.load_weights(shaken)
    return models[0], models[1]


@pytest.mark.parametrize(
    ("kind", "name", "temperature"),
    [(*both, (0, 0.8)[turn % 2]) for turn, both in enumerate(product(KINDS, MODELLED))],
)
def test_the_text_is_the_same_with_every_kind_of_cache(
    kind: str, name: str, temperature: float
) -> None:
    lm, other = pair(kind)
    prompt = [token % 96 for token in PROMPT]
    given: dict[str, Any] = {"max_tokens": 24, "temperature": temperature, "seed": 7}
    given |= MODELLED[name]
    watched = Watching(given.get("hooks"))
    plain = lm.generate(prompt, **{**given, "hooks": watched}, draft="off")
    for draft, most in (("ngram", 8), (other, 4), (other, 1), (lm, 8)):
        watch = Watching(given.get("hooks"))
        own = {**given, "hooks": watch, "draft": draft, "num_draft_tokens": most}
        drafted = lm.generate(prompt, **own)
        assert (drafted.tokens, drafted.text) == (plain.tokens, plain.text), (draft, most)
        assert (drafted.finish_reason, watch.seen) == (plain.finish_reason, watched.seen)
        for mine, theirs in zip(drafted.chunks, plain.chunks, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)
            assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


# ---- the demo model --------------------------------------------------------------------------


@cache
def demo() -> LanguageModel:
    return mlxgen.load()


def chat(text: str) -> Chat:
    return Chat([{"role": "user", "content": text}], template={"enable_thinking": False})


def test_a_draft_ends_where_the_filters_do_not_see_a_token() -> None:
    def withholding(result: PostSamplingResult) -> None:
        result.feed_filters = result.position % 5 != 4

    lm = demo()
    given: dict[str, Any] = {"max_tokens": 16, "seed": 0, "hooks": withholding}
    given["filters"] = mlxgen.Regex("([a-z ]{3}[0-9])*")
    drafted = lm.generate("A red fox.", draft=lm, **given)
    assert drafted.tokens == lm.generate("A red fox.", draft="off", **given).tokens
    assert drafted.usage.accepted_draft_tokens > 4


def test_who_made_room_for_others_is_drafted_for_again() -> None:
    lm = demo()
    options: dict[str, Any] = {"max_tokens": 60, "temperature": 0, "ignore_eos": True}
    prompt = chat("Tell me a story about a hen.")
    scheduler = Scheduler(lm.runtime, Limits(max_batch=2))
    handle = scheduler.submit(lm.runtime.prepare(prompt, Options.of(options)))
    assert lm.runtime.predictor is not None
    handle.drafts = Drafts([lm.runtime._head_drafter(lm.runtime.predictor)], 3, wanted=True)
    before = 0
    while scheduler.busy:
        scheduler.step()
        if not before and handle.request.position >= 20:
            before = handle.usage.drafted_tokens
            scheduler.set_aside(handle)
            assert handle.drafts.nbytes == 0
            scheduler.resume(handle)
    assert 0 < 2 * before < handle.usage.drafted_tokens
    plain = lm.generate(prompt, draft="off", **options)
    assert tuple(handle.request.tokens) == plain.tokens


# ---- which drafts a model takes ----------------------------------------------------------------


@pytest.mark.parametrize("main_has", ["more", "fewer"])
def test_a_draft_may_know_a_few_added_tokens_more_or_less_and_end_otherwise(main_has: str) -> None:
    """Its model may even have no room for the others, which the prompt may hold."""
    small, large = byte_level_tokenizer(), byte_level_tokenizer()
    large._tokenizer.add_tokens([f"<tool {i}>" for i in range(9)])
    small.eos_token_ids = {5}
    if main_has == "fewer":
        small, large = large, small
    lm = LanguageModel(tiny_model(tiny_config(len(large))), large)
    draft = LanguageModel(tiny_model(tiny_config(len(small))), small)
    prompt = [1, 2, len(large) - 1, 3, len(large) - 2]
    for seed in range(3):
        given: dict[str, Any] = {"max_tokens": 30, "temperature": 1.0, "ignore_eos": True}
        found = lm.generate(prompt, draft=draft, seed=seed, **given)
        assert found.tokens == lm.generate(prompt, draft="off", seed=seed, **given).tokens
        assert found.usage.drafted_tokens


def test_a_draft_with_other_tokens_is_refused() -> None:
    model = of_kind("plain").model
    for tokenizer in (alphabet_tokenizer(), byte_level_tokenizer()):
        with pytest.raises(OptionError, match="take a draft of the same model family") as error:
            demo().stream("Hello", draft=LanguageModel(model, tokenizer))
        assert error.value.field == "draft"


# ---- a text that is known to be likely ---------------------------------------------------------

SAID = letters(20)
ASKED = [1, 2, 3, 4]


def test_a_predicted_text_is_drafted_from_its_first_token_on_and_a_wrong_one_changes_nothing() -> (
    None
):
    speaker = reciter(list(SAID), prompt_length=len(ASKED))
    alone = speaker.lm.generate(ASKED, draft="ngram")
    assert alone.usage.accepted_draft_tokens < 3
    for prediction in (SAID, speaker.tokens(list(SAID))):
        fresh = reciter(list(SAID), prompt_length=len(ASKED)).lm
        drafted = fresh.generate(ASKED, draft="ngram", prediction=prediction)
        assert (drafted.tokens, drafted.text) == (alone.tokens, SAID)
        assert drafted.chunks[1].from_draft  # the first one is that of the prompt's pass
        assert drafted.usage.accepted_draft_tokens > 0.7 * len(SAID)
    for draft in ("auto", "ngram", "off"):
        wrong = speaker.lm.generate(ASKED, draft=draft, prediction="abcxyzabcxyz" + SAID[5:])
        assert wrong.text == SAID
    with pytest.raises(OptionError) as error:
        Session(speaker.tokenizer, prediction="a")
    assert error.value.field == "prediction"
