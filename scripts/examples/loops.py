"""Text that repeats itself is taken back while it is written.

A small model that always takes the most likely token soon repeats itself. ``loops="take back"``
makes it go back to the second repetition and write something else. Here the text is shown at once,
so ``retract`` says how much of it to delete; without ``allow_retract``, the third repetition is
held back, and the reader never sees it.

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
