"""Fork into several answers that are written in parallel, and continue when all are done.

``g.fork([...])`` starts a program in a new branch for each function. The branches share the KV of
the text so far and advance in the same batch. The first branch waits for them with ``g.wait`` and
then writes the end. The others leave notes in a variable that all branches share.

    .venv/bin/python scripts/examples/several_answers.py
"""

from __future__ import annotations

import mlxgen
from mlxgen.engine.limits import Stats
from mlxgen.programs import ProgramFunction, Running

PROMPT = "Once upon a time there was a "
HEROES = ["fox", "girl", "king"]


def story_of(hero: str) -> ProgramFunction:
    """A program that tells a story of one hero and returns it."""

    async def program(g: mlxgen.Guide) -> str:
        await g.fixed(hero)
        story = await g.gen(max_tokens=16, stop="\n")
        g.append("finished", f"{hero} ")
        return f"{hero}{story}"

    return program


async def program(g: mlxgen.Guide) -> list[str]:
    tasks = await g.fork([story_of(hero) for hero in HEROES])
    stories: list[str] = await g.wait(*tasks)
    await g.fixed(max(stories, key=len))
    await g.fixed(" ... The end.")
    return stories


def main(seed: int = 1) -> tuple[mlxgen.Control[Running], Stats]:
    lm = mlxgen.load()
    run = lm.control(PROMPT, mlxgen.Program(program), temperature=0.8, seed=seed)
    for _ in run:
        pass
    for branch, result in sorted(run.results.items()):
        print(f"{branch!s:6} {PROMPT}{result.text}")
    print(f"in the order of: {run.controller.variables['finished']}")
    return run, run.stats


if __name__ == "__main__":
    main()
