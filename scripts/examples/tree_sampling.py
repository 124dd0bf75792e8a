"""Grow a tree: fork where the model is unsure, score the branches, drop the losers, and continue.

A controller is asked for every token of its branch. If the newest token was doubtful, it forks: one
branch continues, and the other replaces that token with the next most likely one, which is in
``chunk.candidates``: the tokens that the JSON schema allowed there, with their probabilities.
(``chunk.top`` has the most likely of all tokens, allowed or not.) If there are more than ``WIDTH``
branches, including finished ones, the growing one with the lowest mean log-probability stops.
All branches advance in the same batch and share the KV of their common history, and the schema
applies to each.

    .venv/bin/python scripts/examples/tree_sampling.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlxgen

SURE, WIDTH = 0.6, 4
PROMPT = "Tell me a story about a fox."  # which says nothing about the record
NAME = {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": NAME, "age": {"type": "integer", "maximum": 99}, "city": NAME},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}


class Tree:
    """One branch; ``kept`` has all branches that still grow or are done."""

    def __init__(self, size: int, kept: list[Tree]) -> None:
        self.size = size
        self.anything = mlxgen.Branch(sample_mask=range(size))
        self.chunks: list[mlxgen.Chunk] = []
        self.grows = True
        self.kept = kept
        kept.append(self)

    def fork(self) -> Tree:
        twin = Tree(self.size, self.kept)
        twin.chunks = list(self.chunks)
        return twin

    def observe(self, chunk: mlxgen.Chunk) -> None:
        del self.chunks[chunk.index :]
        self.chunks.append(chunk)

    def ended(self, reason: str | None, error: Exception | None) -> None:
        self.grows = False
        if reason != "filter":
            self.kept.remove(self)

    def mid_process(
        self, branch_idx: int, last_backtrack: int, last_append: Sequence[mlxgen.Token]
    ) -> list[mlxgen.Branch]:
        growing = [tree for tree in self.kept if tree.grows]
        if len(self.kept) > WIDTH and self is min(growing, key=lambda t: score(t.chunks)):
            return []
        if last_append and not last_backtrack:
            best, *others = self.chunks[-1].candidates
            if best.prob < SURE and others:
                return [self.anything, mlxgen.Branch(backtrack=1, sample_mask=[others[0].token])]
        return [self.anything]


def score(chunks: Sequence[mlxgen.Chunk]) -> float:
    logprobs = [chunk.logprob for chunk in chunks if chunk.logprob is not None]
    return sum(logprobs) / max(1, len(logprobs))


def main() -> mlxgen.Control[Tree]:
    lm = mlxgen.load()
    filter = mlxgen.JsonSchema(SCHEMA, whitespace=None, separators=(", ", ": "))
    chat = mlxgen.Chat([{"role": "user", "content": PROMPT}], template={"enable_thinking": False})
    tree = Tree(lm.vocab_size, [])
    run = lm.control(chat, tree, filters=filter, top_candidates=2, top_logprobs=0, max_tokens=100)
    list(run)
    for result in sorted(run.results.values(), key=lambda result: -score(result.chunks)):
        print(f"{score(result.chunks):8.3f} {result.finish_reason:6} {result.text}")
    return run


if __name__ == "__main__":
    main()
