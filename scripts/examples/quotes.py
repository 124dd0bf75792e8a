"""An answer whose quotes are taken from a given text, word by word.

``g.substring(text)`` lets the model write only a passage of ``text``. The model chooses where it
begins and where it ends, at the latest after ``max_tokens``. So the text between the quotation
marks is always a quote.

    .venv/bin/python scripts/examples/quotes.py
"""

from __future__ import annotations

import mlxgen

TEXT = (
    "The old lamp was in the tower. A small dragon found it one rainy day and took it to the "
    "market, where a friendly miller gave him a basket of pears for it."
)
QUOTES = 2


async def program(g: mlxgen.Guide) -> list[str]:
    quotes = []
    for number in range(QUOTES):
        await g.fixed('The text says: "' if number == 0 else ' It also says: "')
        quotes.append(await g.substring(TEXT, max_tokens=14, temperature=0.5 * number))
        await g.fixed('".')
    return quotes


def main(seed: int = 1) -> tuple[list[str], str]:
    lm = mlxgen.load()
    message = {"role": "user", "content": f"Repeat this:\n{TEXT}"}
    prompt = mlxgen.Chat([message], template={"enable_thinking": False})
    run = lm.control(prompt, mlxgen.Program(program), seed=seed)
    for _, chunk in run:
        print(chunk.text, end="", flush=True)
    print()
    return run.controller.value, run.results[()].text


if __name__ == "__main__":
    main()
