"""Batches of tokens for each training step.

Owns the tokenised side of the corpus: which examples come in which step, and in what shape. The
batches of a step are a pure function of (plan, step), so that resuming needs no state.
"""

from bisect import bisect_right
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer

from demo_model import corpus, texts
from demo_model.chat import END, END_OF_TEXT, MARK_TOKENS, NO_THOUGHT, SPECIAL_TOKENS, START

PARTS: Final = 2  # batches in a step
BLOCK: Final = 4096  # examples that are sorted by length together
_LONGEST: Final = 320


class Batch(NamedTuple):
    """`tokens` [rows, length]; the loss is taken of `targets` [n] at the flat `places` [n]."""

    tokens: mx.array
    places: mx.array
    targets: mx.array


class Row(NamedTuple):
    """Token ids, and where the part to be learnt begins (its first token is predicted)."""

    ids: list[int]
    start: int


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that must be there."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


class Batches:
    """All batches of one training.

    The first `copy_steps` steps hold only random tokens to be repeated: that is what forms the
    attention heads that copy, and without it copying and extraction hardly start.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        seed: int,
        *,
        tokens: int,
        copy_steps: int,
        block: int = BLOCK,
        mix: corpus.Mix | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._tokens = tokens  # in one part of a step
        self._copy_steps = copy_steps
        self._block = block
        self._mix = mix
        self._end = token_id(tokenizer, END)
        self._end_of_text = token_id(tokenizer, END_OF_TEXT)
        self._plain = range(len(SPECIAL_TOKENS) + len(MARK_TOKENS), tokenizer.get_vocab_size())
        self._before = tokenizer.encode(f"{START}user\nRepeat: ").ids
        self._after = tokenizer.encode(f"{END}\n{START}assistant\n{NO_THOUGHT}").ids
        self._blocks: dict[int, list[list[Row]]] = {}
        self._starts = [copy_steps]  # the first step of each block

    def part(self, step: int, part: int) -> Batch:
        """The batch number `part` of a step."""
        if step < self._copy_steps:
            return self._copies(step, part)
        number = bisect_right(self._starts, step) - 1
        while True:
            groups = self._groups(number)
            after = self._starts[number] + len(groups) // PARTS
            if step < after:
                return _batch(groups[(step - self._starts[number]) * PARTS + part])
            number += 1
            if number == len(self._starts):
                self._starts.append(after)

    def _groups(self, number: int) -> list[list[Row]]:
        if number not in self._blocks:
            self._blocks = {number: self._make_groups(number)}
        return self._blocks[number]

    def _make_groups(self, number: int) -> list[list[Row]]:
        examples = corpus.block(self._seed, number, self._block, self._mix)
        prompts = self._tokenizer.encode_batch([example.prompt for example in examples])
        targets = self._tokenizer.encode_batch([example.target for example in examples])
        rows = []
        for example, prompt, target in zip(examples, prompts, targets, strict=True):
            end = self._end if example.is_chat else self._end_of_text
            head = prompt.ids if prompt.ids else [end]
            rows.append(Row([*head, *target.ids, end], len(head)))
        rng = Random(f"{self._seed}/copies/{number}")
        copies = (self._mix or corpus.mix(number)).copies
        rows += [self._copy(rng, 48) for _ in range(int(self._block * copies))]
        rows = [row for row in rows if len(row.ids) <= _LONGEST]
        rng.shuffle(rows)
        rows.sort(key=lambda row: len(row.ids))
        groups = _cut(rows, self._tokens)
        rng.shuffle(groups)
        return groups[: len(groups) // PARTS * PARTS]

    def _copies(self, step: int, part: int) -> Batch:
        rng = Random(f"{self._seed}/curriculum/{step}/{part}")
        longest = 19 if step < self._copy_steps // 2 else 40
        rows: list[Row] = []
        while sum(len(row.ids) for row in rows) < self._tokens:
            rows.append(self._copy(rng, longest))
        return _batch(rows)

    def _copy(self, rng: Random, longest: int) -> Row:
        ids = texts.random_tokens(rng, self._plain, longest)
        head = [*self._before, *ids, *self._after]
        return Row([*head, *ids, self._end], len(head))


def _cut(rows: Sequence[Row], tokens: int) -> list[list[Row]]:
    """Groups of about equal cost from rows that are sorted by length."""
    groups: list[list[Row]] = []
    group: list[Row] = []
    for row in rows:
        cost = len(row.ids) * (1 + len(row.ids) / 400)
        if group and (len(group) + 1) * cost > tokens * 1.15:
            groups.append(group)
            group = []
        group.append(row)
    groups.append(group)
    return groups


def _batch(rows: Sequence[Row]) -> Batch:
    length = max(len(row.ids) for row in rows) - 1
    tokens = np.zeros((len(rows), length), dtype=np.int32)
    places: list[int] = []
    targets: list[int] = []
    for index, row in enumerate(rows):
        tokens[index, : len(row.ids) - 1] = row.ids[:-1]
        places += range(index * length + row.start - 1, index * length + len(row.ids) - 1)
        targets += row.ids[row.start :]
    return Batch(mx.array(tokens), mx.array(places), mx.array(targets))
