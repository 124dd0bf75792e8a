"""Decline unlikely tokens, and draw again at ever lower temperatures.

Every token with a probability below ``LIKELY`` is declined, and each further draw at its position
has half the temperature of the one before. ``max_resample`` limits these draws; then the last one
stands, and its chunk says so. The JSON schema applies throughout: a declined token never reaches
the filters, the cache or the text.

    .venv/bin/python scripts/examples/decline_unlikely.py
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mlxgen

LIKELY = 0.3
TEMPERATURE = 1.5
MAX_RESAMPLE = 4
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 8, "maxLength": 24},
        "mood": {"enum": ["sad", "merry", "calm", "brave", "lucky"]},
        "story": {"type": "string", "minLength": 20, "maxLength": 60},
    },
    "required": ["title", "mood", "story"],
    "additionalProperties": False,
}


class Doubt(NamedTuple):
    """A draw that the hook declined, and the temperature that it asked for instead."""

    position: int
    prob: float
    temperature: float


class DeclineUnlikely:
    """A hook. Tokens that the filter forces have probability 1, so they always pass."""

    def __init__(self) -> None:
        self.doubts: list[Doubt] = []

    def __call__(self, result: mlxgen.PostSamplingResult) -> None:
        if result.sampled_prob >= LIKELY:
            return
        result.resample = True
        result.temperature = TEMPERATURE * 0.5 ** (result.attempt + 1)
        self.doubts.append(Doubt(result.position, result.sampled_prob, result.temperature))


def main(seed: int = 1) -> tuple[mlxgen.Result, DeclineUnlikely]:
    lm = mlxgen.load()
    hook = DeclineUnlikely()
    result = lm.generate(
        [{"role": "user", "content": "Tell me a story about a fox."}],
        filters=mlxgen.JsonSchema(SCHEMA, whitespace=None, separators=(", ", ": ")),
        hooks=hook,
        max_resample=MAX_RESAMPLE,
        temperature=TEMPERATURE,
        seed=seed,
        max_tokens=400,
    )
    for position, prob, temperature in hook.doubts:
        print(f"token {position} had probability {prob:.3f}; wanted temperature {temperature:g}")
    print(f"{result.usage.redraws} draws declined: {result.text}")
    return result, hook


if __name__ == "__main__":
    main()
