"""Shared by the measurements: figures in tables, generation on both sides, and models."""

from __future__ import annotations

import gc
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from unittest import mock

from mlx_lm import stream_generate
from mlx_lm.generate import BatchGenerator
from mlx_lm.sample_utils import make_sampler
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import mlxgen

from .architectures import random_model

# ---- figures -----------------------------------------------------------------------------------


class Figure(NamedTuple):
    """``found`` in words, and as a ``value`` if it can be compared. ``met`` is ``None`` if there is
    no target (``wanted``)."""

    what: str
    found: str
    wanted: str = ""
    met: bool | None = None
    value: float | None = None


class Spread(NamedTuple):
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        several = values if len(values) > 1 else [*values] * 2
        low, middle, high = statistics.quantiles(several, n=4, method="inclusive")
        return cls(middle, low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def at_least(what: str, found: float | Spread, target: float, text: object = None) -> Figure:
    figure = plain(what, found, text)
    assert figure.value is not None
    return figure._replace(wanted=f"at least {target:g}", met=figure.value >= target)


def at_most(what: str, found: float | Spread, target: float, text: object = None) -> Figure:
    figure = plain(what, found, text)
    assert figure.value is not None
    return figure._replace(wanted=f"at most {target:g}", met=figure.value <= target)


def plain(what: str, found: float | Spread, text: object = None) -> Figure:
    """A figure without a target."""
    if isinstance(found, Spread):
        return Figure(what, str(text or found), value=found.median)
    return Figure(what, f"{found:.3g}" if text is None else str(text), value=found)


def guarded(name: str, figures: Iterable[Figure]) -> Iterator[Figure]:
    """These figures; a measurement that fails, say because a peer did, becomes a row."""
    try:
        yield from figures
    except Exception as error:
        yield Figure(name, f"failed: {type(error).__name__}: {error}"[:400])


def shown(name: str, figures: Iterable[Figure]) -> Table:
    table = Table("what", "found", "wanted", "", title=name, title_justify="left")
    for figure in figures:
        sign = "" if figure.met is None else "met" if figure.met else "missed"
        table.add_row(figure.what, figure.found, figure.wanted, sign)
    return table


def save(path: Path, found: Mapping[str, Sequence[Figure]]) -> None:
    """Write the figures of each measurement as JSON."""
    told = {name: [figure._asdict() for figure in figures] for name, figures in found.items()}
    path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def compared(before: Path, after: Path) -> Iterator[Table]:
    """A table for each measurement that both files have: the two results, and the change."""
    one, other = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    for name in [name for name in one if name in other]:
        table = Table("what", before.stem, after.stem, "change", title=name, title_justify="left")
        earlier, later = ({each["what"]: each for each in found[name]} for found in (one, other))
        for what in {**earlier, **later}:
            a, b = earlier.get(what, {}), later.get(what, {})
            values = a.get("value"), b.get("value")
            change = f"{100 * (values[1] / values[0] - 1):+.1f} %" if all(values) else ""
            table.add_row(what, a.get("found", "-"), b.get("found", "-"), change)
        yield table


# ---- comparisons -------------------------------------------------------------------------------

Work: TypeAlias = Callable[[], float | None]
"""A function to time; it may return its own seconds, if only a part of it should count."""


class Comparison(NamedTuple):
    """``ratio``: how many times faster ours is. ``ours``, ``theirs``: seconds of each."""

    ratio: Spread
    ours: Spread
    theirs: Spread


def compare(ours: Work, theirs: Work, turns: int) -> Comparison:
    """Run both in turn, each first half of the time, after one warm-up each, in this process: so
    disturbances hit both, and each ratio is taken within a turn."""

    def seconds_of(work: Work) -> float:
        gc.collect()
        gc.disable()
        try:
            start = time.perf_counter()
            own = work()
            return own if own is not None else time.perf_counter() - start
        finally:
            gc.enable()

    gc.collect()
    gc.freeze()  # so that each collection scans only newer objects
    try:
        seconds_of(ours), seconds_of(theirs)
        turns_of: list[tuple[float, float]] = []
        for number in range(turns):
            if number % 2:
                last = seconds_of(theirs)
                turns_of.append((seconds_of(ours), last))
            else:
                turns_of.append((seconds_of(ours), seconds_of(theirs)))
    finally:
        gc.unfreeze()
    ratio = Spread.of([theirs / ours for ours, theirs in turns_of])
    return Comparison(ratio, *(Spread.of(each) for each in zip(*turns_of, strict=True)))


def timed(stream: Iterator[object], tokens: int, after: int = 0) -> float:
    """Seconds to get all ``tokens`` items of a stream; ``after``: not counting the first ones."""
    count = sum(1 for _ in itertools.islice(stream, after))
    start = time.perf_counter()
    count += sum(1 for _ in stream)
    seconds = time.perf_counter() - start
    assert count == tokens, (count, tokens)
    return seconds


# ---- ours and mlx-lm's -------------------------------------------------------------------------

Made: TypeAlias = Generator[Any, None, None]  # tokens, as they are made
ENDLESS = 10_000  # tokens: more than any case generates


@dataclass(frozen=True, slots=True)
class Case:
    """What both sides generate: ``tokens`` tokens after one prompt (a stream), or after each of
    several (a batch). Rows take the options in ``each`` in turn; mlx-lm gets the same samplers,
    and its own options, ``peers``."""

    lm: mlxgen.LanguageModel
    prompt: str | list[int] | list[list[int]]
    tokens: int | None = None
    each: Sequence[Mapping[str, Any]] = ({},)
    peers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_stream(self) -> bool:
        return isinstance(self.prompt, str) or not isinstance(self.prompt[0], list)

    @property
    def options(self) -> list[Mapping[str, Any]]:
        """The options of each row."""
        rows = 1 if self.is_stream else len(self.prompt)
        return [self.each[row % len(self.each)] for row in range(rows)]

    @property
    def rows(self) -> int:
        return len(self.options)

    def ours(self) -> Made:
        """Our stream or batch."""
        lm, prompt, options = self.lm, self.prompt, self.options
        common: Any = {"temperature": 0, "ignore_eos": True, "draft": "off"}
        common |= {"max_tokens": self.tokens}
        if self.is_stream:
            with lm.stream(prompt, **{**common, **options[0]}) as chunks:  # type: ignore[arg-type]
                yield from chunks
        else:
            limits = mlxgen.Limits(max_batch=len(options), keep_prefixes=False)
            with lm.batch(prompt, each=options, limits=limits, **common) as batch:  # type: ignore[arg-type]
                yield from batch

    def theirs(self) -> Made:
        """mlx-lm's stream or batch, with the same model."""
        known, tokens = ("min_p", "top_k", "top_p"), self.tokens or ENDLESS
        samplers = [
            make_sampler(
                temp=each.get("temperature", 0.0), **{k: each[k] for k in known if k in each}
            )
            for each in self.options
        ]
        model, prompt = self.lm.model, self.prompt
        if self.is_stream:
            given = {"max_tokens": tokens, "sampler": samplers[0], **self.peers}
            with mock.patch.object(self.lm.tokenizer, "_eos_token_ids", set()):
                yield from stream_generate(model, self.lm.tokenizer, prompt, **given)
        else:
            yield from their_batch(model, prompt, tokens, samplers=samplers, **self.peers)  # type: ignore[arg-type]

    def timed(self, turns: int, after: int = 0) -> Comparison:
        """Seconds of both for all tokens, or for those after the first ``after``."""
        tokens = self.rows * (self.tokens or ENDLESS)
        return compare(
            lambda: timed(self.ours(), tokens, after),
            lambda: timed(self.theirs(), tokens, after),
            turns,
        )


def their_batch(model: Any, prompts: Sequence[list[int]], tokens: int, **options: Any) -> Made:
    """mlx-lm's batch of some prompts."""
    generator = BatchGenerator(model, stop_tokens=None)
    generator.insert(list(prompts), max_tokens=[tokens] * len(prompts), **options)
    left = len(prompts)
    try:
        while left:
            for response in generator.next_generated():
                left -= response.finish_reason is not None
                yield response
    finally:
        generator.close()


SAMPLERS = [
    {"temperature": 0.5 + 0.05 * i, "top_p": 0.8 + 0.01 * i, "top_k": 20 + 5 * i} for i in range(16)
]
"""Different settings for 16 rows or clients."""

# ---- models ------------------------------------------------------------------------------------

WIDE = 151_936  # tokens of a large vocabulary
DEMO = Path(str(resources.files("mlxgen") / "demo" / "model"))
DRAFT = str(DEMO.parent / "draft")
TINY: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {"sliding_window": 64},
    "qwen3_next": {},
}
"""Architectures: plain attention, sliding windows, and a recurrent state in every other layer."""


def prompt_of(length: int, seed: int) -> list[int]:
    """Made-up tokens; the same seed gives the same ones."""
    chance = random.Random(seed)
    return [chance.randrange(3, 256) for _ in range(length)]


def random_llama(vocab_size: int, hidden: int, layers: int) -> mlxgen.LanguageModel:
    """A float32 Llama of random weights with a made-up tokenizer of ``vocab_size`` tokens."""
    model = random_model(
        "llama",
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=3 * hidden,
        num_attention_heads=hidden // 32,
        num_key_value_heads=max(1, hidden // 64),
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    return mlxgen.LanguageModel(model, fake_tokenizer(vocab_size), draft="off")


def tiny(name: str, layers: int = 4, **shape: Any) -> mlxgen.LanguageModel:
    """A small model of random weights of an architecture of ``TINY``."""
    shape = {"num_hidden_layers": layers, "num_attention_heads": 4, **TINY[name], **shape}
    model = random_model(name, vocab_size=512, max_position_embeddings=8192, **shape)
    return mlxgen.LanguageModel(model, fake_tokenizer(512), name=name, draft="off")


def fake_tokenizer(size: int) -> TokenizerWrapper:
    """A byte-level tokenizer of JSON signs, numbers and made-up words, with one end token."""
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens = {name: k for k, name in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    signs = ['{"', '":', '": "', '", "', '"}', "},", "},{", "[", '["', '"]', "]", '""', ", ", ": "]
    syllables = [a + b for a in "bcdfghklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er")]
    made = (parts for n in itertools.count(1) for parts in itertools.product(syllables, repeat=n))
    words = (form for word in map("".join, made) for form in (word, " " + word, word.capitalize()))
    for text in itertools.chain(signs, map(str, range(1000)), words):
        if len(tokens) == size - 1:
            break
        tokens.setdefault(spell.pre_tokenize_str(text)[0][0], len(tokens))
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", clean_up_tokenization_spaces=False
    )
    return TokenizerWrapper(fast, BPEStreamingDetokenizer)
