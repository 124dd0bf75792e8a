"""Text that repeats itself is taken back, as it is written.

A small model that takes the most likely token each time soon says one thing again and again. With
``loops="take back"`` it goes back to the second turn and has to say something else. The text is
shown at once here, so ``retract`` says how much of it to delete; without ``allow_retract`` a third
turn waits, and nobody sees what was taken back.

    .venv/bin/python scripts/examples/loops.py
"""

from __future__ import annotations

import mlxgen

PROMPT = "one two three four one two three four"


def main(prompt: str = PROMPT, max_tokens: int = 120) -> tuple[str, list[str], mlxgen.Usage]:
    lm = mlxgen.load()
    text, deleted = "", []
    with lm.stream(prompt, loops="take back", allow_retract=True, max_tokens=max_tokens) as stream:
        for chunk in stream:
            if chunk.retract:
                deleted.append(text[len(text) - chunk.retract :])
                text = text[: len(text) - chunk.retract]
                print(f"\n(took back {deleted[-1]!r})\n{text}", end="")
            print(chunk.text, end="", flush=True)
            text += chunk.text
        usage = stream.usage
    print(f"\n{usage.loops} loops, {usage.rewound_tokens} tokens taken back")
    if usage.looped:
        print(f"it ended because it could say nothing but {usage.looped!r}")
    return text, deleted, usage


if __name__ == "__main__":
    main()
