"""After every n tokens, a validator decides: continue, or take those n back and draw them again.

The hook checks the text of each run of ``EVERY`` tokens once its last token was sampled, and
``rewind`` takes the whole run back. Tokens can only be taken back before they are delivered, so
there are two ways to read the stream:

- ``hold_tokens`` delays delivery, and the reader never sees text that is taken back;
- ``allow_retract`` delivers at once, and ``chunk.retract`` says how many characters to delete.

Both draw the same tokens and end with the same text.

    .venv/bin/python scripts/examples/revert_last_n.py
"""

from __future__ import annotations

import re
from typing import NamedTuple

import mlxgen

EVERY = 16


def is_fine(text: str) -> bool:
    """The validator: no long word may occur twice in a run. Any slower check works as well."""
    words = re.findall(r"\w{4,}", text.lower())
    return len(words) == len(set(words))


class RevertLastRun:
    """A hook that remembers where the text of the current run begins."""

    def __init__(self, lm: mlxgen.LanguageModel) -> None:
        self.vocabulary = lm.vocabulary
        self.start = 0
        self.reverted: list[str] = []

    def __call__(self, result: mlxgen.PostSamplingResult) -> None:
        place = result.position % EVERY
        if place == 0:
            self.start = len(result.text)
        ends = result.sampled_token in self.vocabulary.eos
        if place < EVERY - 1 and not ends:
            return
        run = result.text[self.start :]
        if not ends:
            run += self.vocabulary.piece(result.sampled_token).decode(errors="ignore")
        if not is_fine(run):
            self.reverted.append(run)
            result.rewind = place + 1  # this token included


class Outcome(NamedTuple):
    """A finished stream as its reader saw it, and the runs that were taken back."""

    text: str
    chunks: list[mlxgen.Chunk]
    reverted: list[str]


def run(lm: mlxgen.LanguageModel, seed: int, *, retract: bool) -> Outcome:
    hook = RevertLastRun(lm)
    screen, chunks = "", []
    options: mlxgen.GenerationOptions = {"temperature": 1.0, "seed": seed, "max_tokens": 3 * EVERY}
    options |= {"hooks": hook, "max_resample": 20}
    if retract:
        options["allow_retract"] = True
    else:
        options["hold_tokens"] = EVERY - 1
    for chunk in lm.stream("Once upon a time", **options):
        screen = screen[: len(screen) - chunk.retract] + chunk.text
        chunks.append(chunk)
    return Outcome(screen, chunks, hook.reverted)


def main(seed: int = 1) -> tuple[Outcome, Outcome]:
    lm = mlxgen.load()
    held = run(lm, seed, retract=False)
    for text in held.reverted:
        print(f"reverted: {text!r}")
    print(f"held:      {held.text!r}")
    retracted = run(lm, seed, retract=True)
    retractions = [chunk.retract for chunk in retracted.chunks if chunk.retract]
    print(f"retracted: {retracted.text!r}, after taking back {retractions} characters")
    return held, retracted


if __name__ == "__main__":
    main()
