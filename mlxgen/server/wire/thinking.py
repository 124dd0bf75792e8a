"""Whether an answer begins inside the thinking, and constraints that wait until it ends.

Owns the look at the end of a rendered prompt, and the wrapping of specifications. Must
never know what they constrain. Invariant: what a constraint allows is exactly the text
behind the thinking, if there is any.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...filters import After, Specification
from ...filters.first_token import FirstToken
from ...tokens import Token, Vocabulary
from .served_model import ServedModel
from .splitter import Thinking

_TAIL = 64  # tokens at the end of a prompt among which its last mark is looked for


def thinking_of(prompt: Sequence[Token], model: ServedModel, continued: str | None) -> Thinking:
    """Where the text behind a rendered prompt stands.

    The generation prompt is what counts, and it is the end of the prompt: a user who writes
    ``<think>`` changes nothing. ``continued`` is the text of the message to be gone on with.
    """
    start, end = model.marks.think_start, model.marks.think_end
    if start is None or end is None:
        return "closed"
    if continued is not None:
        return "open" if continued.rfind(start) > continued.rfind(end) else "closed"
    tail = _text(prompt[-_TAIL:], model.vocabulary).rstrip()
    if tail.endswith(end):
        return "closed"
    return "open" if tail.endswith(start) else "possible"


def _text(tokens: Sequence[Token], vocabulary: Vocabulary) -> str:
    return b"".join(map(vocabulary.piece, tokens)).decode("utf-8", "replace")


def after_thinking(
    spec: Specification, thinking: Thinking, model: ServedModel, *, required: bool = True
) -> Specification:
    """The specification for what follows the thinking; ``required``: the text may not end
    before it."""
    end = model.marks.think_end
    if thinking == "closed" or end is None:
        return spec
    behind = After(end, spec, required=required)
    if thinking == "open":
        return behind
    first = model.think_start_tokens[0]
    return FirstToken(spec, ((first, behind),))
