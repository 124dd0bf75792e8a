"""Whether an answer begins inside the thinking, and constraints that wait until it ends.

Invariant: what a constraint allows is exactly the text after the thinking, if there is any.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..filters import After, Specification
from ..filters.any_of import FirstToken
from ..tokens import Token
from .dialect import Dialect
from .splitter import Thinking

_TAIL = 64  # tokens at the end of a prompt in which its last mark is looked for


def thinking_of(prompt: Sequence[Token], dialect: Dialect, continued: str | None) -> Thinking:
    """Whether the text after a rendered prompt begins inside the thinking.

    Only the generation prompt counts, which is the end of the prompt: a user who writes
    ``<think>`` changes nothing. ``continued`` is the text of the message to continue.
    """
    start, end = dialect.marks.think_start, dialect.marks.think_end
    if start is None or end is None:
        return "closed"
    if continued is not None:
        return "open" if continued.rfind(start) > continued.rfind(end) else "closed"
    pieces = map(dialect.vocabulary.piece, prompt[-_TAIL:])
    tail = b"".join(pieces).decode("utf-8", "replace").rstrip()
    if tail.endswith(end):
        return "closed"
    return "open" if tail.endswith(start) else "possible"


def after_thinking(
    spec: Specification, thinking: Thinking, dialect: Dialect, *, required: bool = True
) -> Specification:
    """The specification of what follows the thinking; ``required``: the text must not end
    before it."""
    end = dialect.marks.think_end
    if thinking == "closed" or end is None:
        return spec
    after = After(end, spec, required=required)
    if thinking == "open":
        return after
    first = dialect.think_start_tokens[0]
    return FirstToken(spec, ((first, after),))
