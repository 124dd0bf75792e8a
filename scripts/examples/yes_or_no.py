"""A program asks the model yes or no, and its next text depends on the answer.

A program is an async function of a guide ``g``. ``g.choose`` lets the model sample exactly one of
several texts, and ``await`` returns it to the program, which continues like any Python code. The
demo model knows a list of facts but not when to say "yes" or "no", so it guesses, and then says
what it knows. A real model answers better with the same program.

    .venv/bin/python scripts/examples/yes_or_no.py
"""

from __future__ import annotations

from typing import NamedTuple

import mlxgen

QUESTION = "What is the capital of France?"
CITIES = ["Paris", "Rome", "London"]


class Answer(NamedTuple):
    """The model's choices, and the whole text."""

    is_known: str
    city: str
    text: str


async def program(g: mlxgen.Guide) -> tuple[str, str]:
    await g.fixed("Do I know it? ")
    is_known = await g.choose(["yes", "no"])
    if is_known == "yes":
        await g.fixed("! The capital of France is ")
    else:
        await g.fixed(". Still, the capital of France is ")
    city = await g.choose(CITIES)
    await g.fixed(".")
    return is_known, city


def main() -> Answer:
    lm = mlxgen.load()
    message = {"role": "user", "content": QUESTION}
    prompt = mlxgen.Chat([message], template={"enable_thinking": False})
    run = lm.control(prompt, mlxgen.Program(program))
    for _, chunk in run:
        print(chunk.text, end="", flush=True)
    print()
    is_known, city = run.controller.value
    return Answer(is_known, city, run.results[()].text)


if __name__ == "__main__":
    main()
