"""How often a text is drawn under a mask, and how often by the model's own distribution.

The expression allows five zeros, or a one and any four bits. Under the mask, the first digit alone
decides between the two, whatever probabilities the model gives to the bits that follow. The moves
of ``lm.resampled`` weigh whole texts, and bring the share of the zeros to the model's own.

    .venv/bin/python scripts/examples/as_it_means.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlxgen

PROMPT, ZEROS = "Bits: ", "00000"
PATTERN = "00000|1[01]{4}"
TEXTS = [ZEROS, *(f"1{bits:04b}" for bits in range(16))]


def chance(lm: mlxgen.LanguageModel, text: str) -> float:
    """The probability that the model writes a text after the prompt."""
    with lm.stream(PROMPT, filters=[mlxgen.Choice([text])], top_logprobs=0) as stream:
        return math.exp(sum(chunk.logprob or 0.0 for chunk in stream))


def main(chains: int = 100, each: Sequence[int] = (0, 8, 32)) -> tuple[float, dict[int, float]]:
    lm = mlxgen.load()
    chances = {text: chance(lm, text) for text in TEXTS}
    meant = chances[ZEROS] / sum(chances.values())
    print(f"The model means {ZEROS} in {meant:.0%} of the texts.")
    drawn = {}
    for moves in each:
        filters = [mlxgen.Regex(PATTERN)]
        results = lm.resampled(PROMPT, moves=moves, chains=chains, filters=filters, seed=1)
        drawn[moves] = sum(result.text == ZEROS for result in results) / chains
        print(f"After {moves} moves it is written in {drawn[moves]:.0%}.")
    return meant, drawn


if __name__ == "__main__":
    main()
