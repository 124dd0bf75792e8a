"""Fork a stream, let each fork continue by itself, and keep the most likely one.

The forks share the KV cache of their common history until they write, so the prompt runs through
the model once. Each fork has its own seed. ``top_logprobs=0`` reports each token's log-probability
without alternatives. The score is the mean, so that short and long continuations compare fairly.

    .venv/bin/python scripts/examples/best_of_forks.py
"""

from __future__ import annotations

from typing import NamedTuple

import mlxgen

COMMON = 8  # tokens before the fork
FORKS = 4


class Candidate(NamedTuple):
    """One fork's whole text, its score, and the forward passes that it cost."""

    text: str
    score: float
    tokens: int  # its own, after the fork
    forward_passes: int


def finish(fork: mlxgen.Stream) -> Candidate:
    with fork:
        logprobs = [chunk.logprob for chunk in fork if chunk.logprob is not None]
        score = sum(logprobs) / max(1, len(logprobs))
        return Candidate(fork.text, score, len(logprobs), fork.usage.forward_passes)


def main(seed: int = 1) -> tuple[str, list[Candidate]]:
    lm = mlxgen.load()
    with lm.stream(
        "Once upon a time", temperature=1.0, seed=seed, max_tokens=40, top_logprobs=0
    ) as stream:
        for _ in range(COMMON):
            next(stream)
        common = stream.text
        candidates = [finish(fork) for fork in stream.fork(FORKS)]
    candidates.sort(key=lambda candidate: candidate.score, reverse=True)
    print(f"common: {common!r}")
    for text, score, _, _ in candidates:
        print(f"{score:8.3f} {text[len(common) :]!r}")
    return common, candidates


if __name__ == "__main__":
    main()
