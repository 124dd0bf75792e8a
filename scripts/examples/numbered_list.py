"""A numbered list: the program writes the numbers, and the model one item of each kind.

Every item has its own regular expression, so nothing needs parsing afterwards: ``await`` returns
the item. The text between items comes from the program and is not sampled; it goes through the
model in the same pass as the text before it.

    .venv/bin/python scripts/examples/numbered_list.py
"""

from __future__ import annotations

import mlxgen

PROMPT = "What is the capital of France?"
ITEMS = {
    "The capital of France is ": "[A-Z][a-z]{2,12}",
    "The opposite of hot is ": "(cold|warm|wet)",
    "June has this many days: ": "[0-9]{2}",
    "3 + 4 = ": "[0-9]",
    "Fe is the symbol for ": "(gold|iron|lead)",
}


async def program(g: mlxgen.Guide) -> dict[str, str]:
    found = {}
    for number, (beginning, pattern) in enumerate(ITEMS.items(), start=1):
        await g.fixed(f"{number}. {beginning}")
        found[beginning] = await g.gen(regex=pattern)
        await g.fixed(".\n")
    return found


def main() -> tuple[dict[str, str], mlxgen.Result]:
    lm = mlxgen.load()
    prompt = mlxgen.Chat([{"role": "user", "content": PROMPT}], template={"enable_thinking": False})
    run = lm.control(prompt, mlxgen.Program(program))
    for _, chunk in run:
        print(chunk.text, end="", flush=True)
    result = run.results[()]
    usage = result.usage
    print(f"{usage.completion_tokens} tokens, {usage.forced_tokens} of them not sampled")
    return run.controller.value, result


if __name__ == "__main__":
    main()
