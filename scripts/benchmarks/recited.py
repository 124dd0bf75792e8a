"""Texts that a model recites: what there is to draft in them, and nothing else.

Owns the texts, their tokenizer, and the model that says them. Must never know drafts. Invariant:
the token after each place is given by the place alone, so whatever is fed, the text is the same.

The texts are of Python's standard library: real prose and real code, with real repetitions.
"""

from __future__ import annotations

import inspect
import itertools
import json
import pickletools
import random
import re
import shlex
import statistics
import textwrap
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCAB = 4_096
PEAK = 50.0  # added to the logit of the token that is recited
_END = "<|end|>"


class Recital(NamedTuple):
    """The ``text`` that a model says after a ``prompt``."""

    prompt: list[int]
    text: list[int]


@cache
def tokenizer() -> TokenizerWrapper:
    """A byte-level tokenizer that was trained on some modules of the standard library."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    modules = (inspect, json.decoder, json.encoder, pickletools, random, shlex, statistics)
    made.train_from_iterator(map(inspect.getsource, (*modules, textwrap)), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=_END, clean_up_tokenization_spaces=False
    )
    return TokenizerWrapper(fast, BPEStreamingDetokenizer)


def _ids(text: str) -> list[int]:
    ids: list[int] = tokenizer().encode(text, add_special_tokens=False)
    return ids


def copying(words: int = 320) -> list[Recital]:
    """A passage of prose that is repeated with one word in 20 changed."""
    said = itertools.chain.from_iterable(each.doc.split() for each in pickletools.opcodes)
    passage = [word for word, _ in zip(said, range(words), strict=False)]
    chance, others = random.Random(1), re.findall(r"[a-z]{4,}", inspect.getsource(shlex))
    edited = [chance.choice(others) if chance.random() < 0.05 else word for word in passage]
    prompt = f"Copy this and correct the words:\n{' '.join(passage)}\n\nCorrected:\n"
    return [Recital(_ids(prompt), _ids(" ".join(edited)))]


def rewriting(turns: int = 2, lines: int = 45) -> list[Recital]:
    """The turns of an agent that rewrites a file, a line in 12 of which changes each time.

    The file as it was is in the prompt, as are the turns before."""
    source = inspect.getsource(statistics.NormalDist).splitlines()[:lines]
    new = inspect.getsource(textwrap).splitlines()[40:]
    chance = random.Random(2)
    said = "Rewrite the file as you are asked to, whole.\n"
    found = []
    for turn in range(turns):
        said += f"\nuser, {turn}: the file is now\n" + "\n".join(source) + "\nassistant:\n"
        source = list(itertools.chain.from_iterable(_changed(line, new, chance) for line in source))
        answer = "\n".join(source)
        found.append(Recital(_ids(said), _ids(answer)))
        said += answer
    return found


def _changed(line: str, new: Sequence[str], chance: random.Random) -> list[str]:
    if chance.random() > 1 / 12:
        return [line]
    words = line.split(" ")
    words[chance.randrange(len(words))] = f"{chance.choice(new).strip().split(' ')[0]}"
    return chance.choice(([], [line, chance.choice(new)], [" ".join(words)]))


def calling(before: int = 60, calls: int = 40) -> list[Recital]:
    """Calls of three tools, after many such; which values each has is known to be one of few."""
    chance = random.Random(5)

    def call() -> str:
        path = chance.choice(["src/main.py", "src/util.py", "tests/test_main.py"])
        arguments = {"path": path, "mode": chance.choice("rw"), "all": chance.random() < 0.5}
        name = chance.choice(["read_file", "write_file", "search"])
        return json.dumps({"name": name, "arguments": arguments})

    known, told = ("".join(f"{call()}\n" for _ in range(number)) for number in (before, calls))
    return [Recital(_ids(f"Calls:\n{known}"), _ids(told))]


def arithmetic(sums: int = 40) -> list[Recital]:
    """Numbers that are added, of which nothing is known before."""
    chance = random.Random(3)
    pairs = [(chance.randrange(10**9), chance.randrange(10**9)) for _ in range(sums)]
    asked = "\n".join(f"{a} + {b}" for a, b in pairs)
    return [Recital(_ids(f"Add:\n{asked}\n"), _ids("\n".join(str(a + b) for a, b in pairs)))]


class Reciting(nn.Module):
    """Says what it is given, and takes the time of the ``inner`` model, if there is one."""

    def __init__(self, inner: Any = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inner = inner
        self.layers = [None] if inner is None else inner.layers
        self._following = mx.zeros(VOCAB, mx.int32)

    def recite(self, recital: Recital) -> None:
        """Have this said from now on."""
        whole = [*recital.prompt[1:], *recital.text]
        self._following = mx.array([*whole, *whole[-1:] * VOCAB])

    def make_cache(self) -> list[Any]:
        return [KVCache() for _ in self.layers]

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        start, count = cache[0].offset, inputs.shape[1]
        if self.inner is None:
            keys = inputs.astype(mx.float32)[:, None, :, None]
            cache[0].update_and_fetch(keys, keys)
            logits = mx.zeros((1, 1, VOCAB))
        else:
            logits = self.inner(inputs, cache)
        following = self._following[start : start + count]
        return logits + mx.where(mx.arange(VOCAB) == following[None, :, None], PEAK, 0.0)
