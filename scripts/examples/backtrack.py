"""Write, look at it, take it back and write it again, until it will do.

A label is a place in the text. ``g.backtrack(label)`` takes everything behind it back, in the text,
the KV cache and the filters, delivered or not: the reader of the chunks is told by ``retract`` how
many characters to delete. Positions that are drawn again are drawn anew, seed or not.

    .venv/bin/python scripts/examples/backtrack.py
"""

from __future__ import annotations

from typing import NamedTuple

import mlxgen

PROMPT = "Once upon a time"
MOST = 8
WORDS = range(5, 9)  # so many in a line


def will_do(line: str) -> bool:
    """What is wanted: a line of some words, none of them twice."""
    words = line.lower().replace(",", "").split()
    return len(words) in WORDS and len(set(words)) == len(words)


async def program(g: mlxgen.Guide) -> list[str]:
    tried = []
    start = g.label()
    for attempt in range(MOST):
        line = await g.gen(stop=[".", "\n"], max_tokens=30, temperature=0.5 + 0.1 * attempt)
        tried.append(line)
        if will_do(line):
            break
        await g.backtrack(start)
    await g.fixed(".")
    return tried


class Outcome(NamedTuple):
    """The lines in order, what stood on the screen at the end, and the result."""

    tried: list[str]
    screen: str
    result: mlxgen.Result


def main(seed: int = 1) -> Outcome:
    lm = mlxgen.load()
    run = lm.control(PROMPT, mlxgen.Program(program), seed=seed)
    screen = ""
    for _, chunk in run:
        screen = screen[: len(screen) - chunk.retract] + chunk.text
    for line in run.controller.value:
        print(f"tried: {PROMPT}{line}")
    print(f"kept:  {PROMPT}{screen}")
    return Outcome(run.controller.value, screen, run.results[()])


if __name__ == "__main__":
    main()
