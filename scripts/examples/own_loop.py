"""Run the model yourself, and let a ``Session`` turn its logits into tokens.

The session never sees the model or its cache. It says what the cache should hold: the first
``keep`` positions are still valid, and the ``pending`` tokens must be run after them. These are the
prompt at first, and usually one token later. If a ban takes tokens back, ``keep`` goes back, too.
So bans, healing, stops, filters and hooks work with any loop as they do in ``lm.stream``.

Here the model writes a text, two adjacent words of it are banned, and it writes another text.

    .venv/bin/python scripts/examples/own_loop.py
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache

import mlxgen

PROMPT = "Once upon a ti"  # ends inside a word: healing takes its last token back


class Outcome(NamedTuple):
    """A finished session, and the counts of its loop."""

    session: mlxgen.Session
    rewound: int  # tokens that were taken back


def run(lm: mlxgen.LanguageModel, **options: Any) -> Outcome:
    """Any loop that honours ``keep`` and ``pending``."""
    width = lm.vocab_size
    session = mlxgen.Session(lm.tokenizer, prompt=PROMPT, vocab_size=width, **options)
    cache = make_prompt_cache(lm.model)
    rewound = 0
    while session.finish_reason is None:
        surplus = cache[0].offset - session.keep
        if surplus and trim_prompt_cache(cache, surplus) != surplus:
            raise RuntimeError("this model's cache cannot be trimmed")
        logits = lm.model(mx.array([session.pending]), cache=cache)[:, -1, :]
        chunk = session.push_logits(logits)
        print(chunk.text, end="", flush=True)
        rewound += chunk.rewound
    print()
    return Outcome(session, rewound)


def main() -> tuple[str, Outcome, Outcome]:
    lm = mlxgen.load()
    first = run(lm, heal=True, max_tokens=40)
    words = max(re.findall(r"\w+ \w+", first.session.text), key=len)
    print(f"\nnow without {words!r}:\n")
    second = run(lm, heal=True, max_tokens=40, banned=words)
    print(f"\n{second.rewound} tokens were taken back")
    return words, first, second


if __name__ == "__main__":
    main()
