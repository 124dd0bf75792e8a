"""Write a line, check it, and take it back until one is good enough.

A label marks a place in the text. ``g.backtrack(label)`` takes back everything after it, in the
text, the KV cache and the filters, delivered or not: ``chunk.retract`` tells the reader of the
chunks how many characters to delete. The positions are then drawn anew, even with a seed.

    .venv/bin/python scripts/examples/backtrack.py
"""

from __future__ import annotations

import mlxgen

PROMPT = "Once upon a time"
MOST = 8
WORDS = range(5, 9)  # the number of words that a line may have


def will_do(line: str) -> bool:
    """Whether a line has the right number of words, and none of them twice."""
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


def main(seed: int = 1) -> tuple[list[str], str, mlxgen.Result]:
    """The lines in order, the text on the screen at the end, and the result."""
    lm = mlxgen.load()
    run = lm.control(PROMPT, mlxgen.Program(program), seed=seed)
    screen = ""
    for _, chunk in run:
        screen = screen[: len(screen) - chunk.retract] + chunk.text
    tried: list[str] = run.controller.value
    for line in tried:
        print(f"tried: {PROMPT}{line}")
    print(f"kept:  {PROMPT}{screen}")
    return tried, screen, run.results[()]


if __name__ == "__main__":
    main()
