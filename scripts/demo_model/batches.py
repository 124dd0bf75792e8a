"""Batches of tokens for each training step.

Owns the tokenised corpus: which examples each step has, and in what shape.
"""

from collections.abc import Iterator, Sequence
from itertools import count, islice
from random import Random
from typing import Final, NamedTuple

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer

from demo_model import corpus, texts
from demo_model.chat import END, END_OF_TEXT, MARK_TOKENS, NO_THOUGHT, SPECIAL_TOKENS, START

PARTS: Final = 2  # batches in a step
BLOCK: Final = 4096  # examples that are sorted by length at a time
_LONGEST: Final = 320


class Batch(NamedTuple):
    """`tokens` [rows, length]; the loss is that of `targets` [n] at the flat `places` [n]."""

    tokens: mx.array
    places: mx.array
    targets: mx.array


class Row(NamedTuple):
    """Token ids, and the index of the first token to learn."""

    ids: list[int]
    start: int


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that must exist."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


def steps(
    tokenizer: Tokenizer,
    seed: int,
    *,
    tokens: int,
    copy_steps: int,
    block: int = BLOCK,
    mix: corpus.Mix | None = None,
) -> Iterator[list[Batch]]:
    """The batches of each step of a training, without end; ``tokens``: how many a batch has.

    The first ``copy_steps`` steps have only random tokens to repeat: these form the attention heads
    that copy, without which copying and extraction are hardly learnt.
    """
    end, end_of_text = token_id(tokenizer, END), token_id(tokenizer, END_OF_TEXT)
    plain = range(len(SPECIAL_TOKENS) + len(MARK_TOKENS), tokenizer.get_vocab_size())
    before = tokenizer.encode(f"{START}user\nRepeat: ").ids
    after = tokenizer.encode(f"{END}\n{START}assistant\n{NO_THOUGHT}").ids

    def copied(rng: Random, longest: int) -> Row:
        ids = texts.random_tokens(rng, plain, longest)
        head = [*before, *ids, *after]
        return Row([*head, *ids, end], len(head))

    def copies(step: int, part: int) -> Batch:
        rng = Random(f"{seed}/curriculum/{step}/{part}")
        longest = 19 if step < copy_steps // 2 else 40
        rows: list[Row] = []
        while sum(len(row.ids) for row in rows) < tokens:
            rows.append(copied(rng, longest))
        return _batch(rows)

    for step in range(copy_steps):
        yield [copies(step, part) for part in range(PARTS)]
    for number in count():
        examples = corpus.block(seed, number, block, mix)
        prompts = tokenizer.encode_batch([example.prompt for example in examples])
        targets = tokenizer.encode_batch([example.target for example in examples])
        rows = []
        for example, prompt, target in zip(examples, prompts, targets, strict=True):
            last = end if example.is_chat else end_of_text
            head = prompt.ids if prompt.ids else [last]
            rows.append(Row([*head, *target.ids, last], len(head)))
        rng = Random(f"{seed}/copies/{number}")
        share = (mix or corpus.mix(number)).copies
        rows += [copied(rng, 48) for _ in range(int(block * share))]
        rows = [row for row in rows if len(row.ids) <= _LONGEST]
        rng.shuffle(rows)
        rows.sort(key=lambda row: len(row.ids))
        cut = _cut(rows, tokens)
        rng.shuffle(cut)
        groups = map(_batch, cut)
        while len(parts := list(islice(groups, PARTS))) == PARTS:
            yield parts


def _cut(rows: Sequence[Row], tokens: int) -> list[list[Row]]:
    """Groups of about equal cost, from rows sorted by length."""
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
