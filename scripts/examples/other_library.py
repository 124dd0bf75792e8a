"""Filters of other libraries, which ``Replay`` makes rewindable, in a stream rewound midway.

``Replay`` turns a filter that can only go forwards into one that can be rewound, copied and
queried. Here one is written by hand with the package ``regex``, which matches partial text. The
same pattern runs through the adapters of lm-format-enforcer and outlines-core, which are optional
installs:

    .venv/bin/pip install "mlxgen[lmfe,outlines]"
    .venv/bin/python scripts/examples/other_library.py
"""

from __future__ import annotations

import regex

import mlxgen
from mlxgen.filters import Int32Words, words_of

PROMPT = "Extract the person record as JSON: Maria is 34 years old and lives in Lisbon."
PATTERN = r'\{"name": "[A-Z][a-z]{2,7}", "city": "[A-Z][a-z]{2,9}", "lucky": [1-9][0-9]{4}\}'


class PartialMatch:
    """A filter with the methods that every filter must have: no rewind and no fork."""

    def __init__(self, pattern: str, lm: mlxgen.LanguageModel) -> None:
        self.pattern = regex.compile(pattern)
        self.vocabulary, self.width = lm.vocabulary, lm.vocab_size
        ids = range(self.vocabulary.size)
        pieces = {t: self.vocabulary.piece(t) for t in ids if self.vocabulary.is_ordinary(t)}
        self.words = {t: piece.decode() for t, piece in pieces.items() if piece.isascii()}
        self.text = ""

    def fits(self, word: str) -> bool:
        return self.pattern.fullmatch(self.text + word, partial=True) is not None

    def fill(self, row: Int32Words) -> bool:
        row[:] = words_of([t for t, word in self.words.items() if self.fits(word)], self.width)
        return True

    def advance(self, token: mlxgen.Token) -> None:
        if token not in self.words or not self.fits(self.words[token]):
            raise mlxgen.FilterError(f"{self.text!r} cannot continue with token {token}")
        self.text += self.words[token]

    def can_end(self) -> bool:
        return self.pattern.fullmatch(self.text) is not None

    def reset(self) -> None:
        self.text = ""


def generate(lm: mlxgen.LanguageModel, filter: mlxgen.Filter, seed: int) -> str:
    """Generate 8 tokens, take 5 back, and generate to the end."""
    prompt = mlxgen.Chat([{"role": "user", "content": PROMPT}], template={"enable_thinking": False})
    with lm.stream(prompt, filters=mlxgen.Replay(filter), temperature=1.0, seed=seed) as stream:
        for _ in range(8):
            next(stream)
        seen = stream.text
        stream.rewind(tokens=5)
        kept = stream.text
        assert seen.startswith(kept) and len(stream.tokens) == 3
        for _ in stream:
            pass
        print(f"  kept {kept!r} of {seen!r}\n  then {stream.text!r}")
        return stream.text


def main(seed: int = 1) -> dict[str, str]:
    lm = mlxgen.load()
    enforcer, outlines = mlxgen.LMFormatEnforcer.regex(PATTERN), mlxgen.OutlinesCore(PATTERN)
    filters: dict[str, mlxgen.Filter] = {
        "by hand": PartialMatch(PATTERN, lm),
        "lm-format-enforcer": enforcer.bind(lm.tokenizer, lm.vocab_size),
        "outlines-core": outlines.bind(lm.tokenizer, lm.vocab_size),
    }
    texts = {}
    for name, filter in filters.items():
        print(name)
        texts[name] = generate(lm, filter, seed)
    return texts


if __name__ == "__main__":
    main()
