"""Sentences that fail a check are deleted from the screen, and written again.

Every sentence of the story may have at most ``MOST`` words. A longer one appears, is deleted, and
is written again at a higher temperature; after ``TRIES`` tries the shortest one stands. With a
larger model and ``mlxgen.filters.checks.python`` as the check, this writes code that parses.

    .venv/bin/python scripts/examples/checked_lines.py
"""

from __future__ import annotations

from typing import Any

import mlxgen

MOST, TRIES = 9, 6


def too_long(sentence: str, before: str) -> tuple[str, float] | None:
    """The check: what is wrong with a sentence, and how bad it is."""
    count = len(sentence.split())
    return (f"{count} words", count) if count > MOST else None


def main(seed: int = 1) -> tuple[str, list[str], mlxgen.Usage]:
    lm = mlxgen.load()
    text, deleted = "", []
    checked = mlxgen.Checked(too_long, at=".", tries=TRIES)
    options: dict[str, Any] = {"filters": [checked], "allow_retract": True, "max_tokens": 60}
    with lm.stream("Once upon a time", seed=seed, **options) as stream:
        for chunk in stream:
            if chunk.retract:
                deleted.append(text[len(text) - chunk.retract :])
                text = text[: len(text) - chunk.retract]
                print(f"\n(took back {deleted[-1]!r})\n{text}", end="")
            print(chunk.text, end="", flush=True)
            text += chunk.text
        usage = stream.usage
    print(f"\n{len(deleted)} sentences taken back; {usage.violates or 'all are short enough'}")
    return text, deleted, usage


if __name__ == "__main__":
    main()
