"""Grow a tree: fork where the model is unsure, score the branches, drop the losers, go on.

A controller is asked for every token of its branch. Where the newest one was doubtful, it forks:
one branch goes on, the other takes that token back and has the next likeliest in its place. Where
there are more branches than ``WIDTH``, the one with the lowest mean log-probability stops. They
advance in the same batch and share what they have in common; the JSON schema holds in all of them.

    .venv/bin/python scripts/examples/tree_sampling.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlxgen
from mlxgen.filters import Constraint, allows

SURE, WIDTH = 0.6, 4
PROMPT = "Tell me a story about a fox."  # which says nothing of what the record wants
NAME = {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": NAME, "age": {"type": "integer", "maximum": 99}, "city": NAME},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}


class Tree:
    """One branch; ``alive`` are those of all."""

    def __init__(self, size: int, constraint: Constraint, alive: list[Tree]) -> None:
        self.anything = mlxgen.Branch(sample_mask=range(size))
        self.constraint = constraint  # the filter's twin: it knows what else was allowed
        self.chunks: list[mlxgen.Chunk] = []
        self.alive = alive
        alive.append(self)

    def fork(self) -> Tree:
        twin = Tree(self.constraint.vocab_size, self.constraint.fork(), self.alive)
        twin.chunks = list(self.chunks)
        return twin

    def observe(self, chunk: mlxgen.Chunk) -> None:
        del self.chunks[chunk.index :]
        self.chunks.append(chunk)

    def ended(self, reason: str | None, error: Exception | None) -> None:
        self.alive.remove(self)

    def mid_process(
        self, branch_idx: int, last_backtrack: int, last_append: Sequence[mlxgen.Token]
    ) -> list[mlxgen.Branch]:
        self.constraint.rewind(len(self.constraint) - last_backtrack)
        allowed = self.constraint.mask()
        for token in last_append:
            self.constraint.advance(token)
        if len(self.alive) > WIDTH and self is min(self.alive, key=lambda t: score(t.chunks)):
            return []
        if last_append and not last_backtrack and (self.chunks[-1].logprob or 0) < math.log(SURE):
            others = [a.token for a in self.chunks[-1].top if a.token not in last_append]
            others = [t for t in others if allowed is None or allows(allowed, t)]
            if others:
                return [self.anything, mlxgen.Branch(backtrack=1, sample_mask=others[:1])]
        return [self.anything]


def score(chunks: Sequence[mlxgen.Chunk]) -> float:
    logprobs = [chunk.logprob for chunk in chunks if chunk.logprob is not None]
    return sum(logprobs) / max(1, len(logprobs))


def main() -> mlxgen.Control[Tree]:
    lm = mlxgen.load()
    filter = mlxgen.JsonSchema(SCHEMA, whitespace=None, separators=(", ", ": "))
    tree = Tree(lm.vocab_size, Constraint([filter], lm.vocabulary, lm.vocab_size), [])
    prompt = lm.vocabulary.chat([{"role": "user", "content": PROMPT}], enable_thinking=False)
    run = lm.control(prompt, tree, filters=filter, top_logprobs=5, max_tokens=100)
    list(run)
    for result in sorted(run.results.values(), key=lambda result: -score(result.chunks)):
        print(f"{score(result.chunks):8.3f} {result.finish_reason:6} {result.text}")
    return run


if __name__ == "__main__":
    main()
