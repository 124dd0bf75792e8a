"""Show a model's uncertainty as white space inside the JSON that it writes.

If the model is unsure of a token, a hook puts a space in its place and sets ``feed_filters =
False``. The space goes through the model and into the text, but the filter never sees it, not
even if it is rewound or copied later. So spaces may stand where the schema allows none, such as
in the middle of a word, and the text without them is still valid.

    .venv/bin/python scripts/examples/uncertain_whitespace.py
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mlxgen

SURE = 0.7
PROMPT = "Tell me a story about a fox."  # which says nothing about the record
MOST = 3  # spaces in a row, however unsure
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}


class SpacesForDoubt:
    """A hook that puts up to ``MOST`` spaces before a token while the model is unsure of it."""

    def __init__(self, space: mlxgen.Token) -> None:
        self.space = space
        self.added: set[int] = set()  # the positions of the spaces

    def __call__(self, result: mlxgen.PostSamplingResult) -> None:
        position = result.position
        before = range(position - MOST, position)
        if result.sampled_prob < SURE and not self.added.issuperset(before):
            result.sampled_token = self.space
            result.feed_filters = False
            self.added.add(position)


class Outcome(NamedTuple):
    """The generated text, the part that the filter saw, the spaces' positions, and all tokens."""

    text: str
    without: str
    added: set[int]


def main(seed: int = 1) -> Outcome:
    lm = mlxgen.load()
    space = lm.vocabulary.token_of(b" ")
    assert space is not None, "every tokenizer has a token for a space"
    hook = SpacesForDoubt(space)
    result = lm.generate(
        mlxgen.Chat([{"role": "user", "content": PROMPT}], template={"enable_thinking": False}),
        filters=mlxgen.JsonSchema(SCHEMA, whitespace=None, separators=(", ", ": ")),
        hooks=hook,
        temperature=1.0,
        seed=seed,
        max_tokens=300,
    )
    kept = [token for i, token in enumerate(result.tokens) if i not in hook.added]
    without = lm.vocabulary.decode(kept)
    print(f"with spaces:    {result.text}")
    print(f"without spaces: {without}")
    return Outcome(result.text, without, hook.added)


if __name__ == "__main__":
    main()
