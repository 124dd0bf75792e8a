"""Drive mlx-lm's own ``BatchGenerator`` with one ``mlxgen.Session`` for each row.

The generator runs the model and owns the batch's cache. A row's sampler gets the row's
log-probabilities [1, vocab], pushes them into the row's session and returns the token; every push
uses exactly one position. The session handles stop strings, filters and text. Its chunks are known
before the generator returns the token (it works one step ahead), so a row is removed as soon as its
session has finished, and its last token never goes through the model.

A ``BatchGenerator`` cannot take a position back, so these sessions must not have ``banned``,
``close_json`` or hooks that ``rewind``. Hooks that only ``resample`` are fine, because the draw is
repeated with the same logits, and so is ``heal``, which shortens the prompt before the first push.

    .venv/bin/python scripts/examples/session_batch.py
"""

from __future__ import annotations

from typing import Any, Unpack

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

import mlxgen

STOP = "END OF LIST"  # several tokens
LIST = rf"(apples|pears), (plums|figs), {STOP} and more"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"enum": [33, 34, 35]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Row:
    """A session and its chunks."""

    def __init__(
        self, lm: mlxgen.LanguageModel, text: str, **options: Unpack[mlxgen.GenerationOptions]
    ) -> None:
        prompt: str | mlxgen.Chat = text
        if not options.get("heal"):
            message = {"role": "user", "content": text}
            prompt = mlxgen.Chat([message], template={"enable_thinking": False})
        self.session = mlxgen.Session(
            lm.tokenizer, prompt=prompt, vocab_size=lm.vocab_size, **options
        )
        self.chunks: list[mlxgen.Chunk] = []

    def sample(self, logprobs: mx.array) -> mx.array:
        """The sampler of a ``BatchGenerator``."""
        chunk = self.session.push_logits(logprobs)
        assert not chunk.rewound and chunk.index == len(self.chunks)
        self.chunks.append(chunk)
        return mx.array([chunk.token])


def main(seed: int = 1) -> list[Row]:
    lm = mlxgen.load()
    rows = [
        Row(lm, "What is the capital of France?", stop="\n"),
        Row(lm, "Write a list.", filters=mlxgen.Regex(LIST), stop=STOP),
        Row(lm, "Maria is 34.", filters=mlxgen.JsonSchema(SCHEMA), temperature=1.0, seed=seed),
        Row(lm, "Once upon a ti", heal=True, max_tokens=24, temperature=0.7, seed=seed),
    ]
    generator = BatchGenerator(lm.model, max_tokens=1_000)  # the sessions know when to end
    prompts = [row.session.pending for row in rows]  # already shortened by healing
    uids = generator.insert(prompts, samplers=[row.sample for row in rows])
    running = dict(zip(uids, rows, strict=True))
    while running:
        generator.next()
        for uid, row in list(running.items()):
            if row.session.finish_reason is not None:
                generator.remove([uid])
                del running[uid]
                print(f"row {uid} ({row.session.finish_reason}): {row.session.text!r}")
    generator.close()
    return rows


if __name__ == "__main__":
    main()
