"""Where the messages of a chat begin in its tokens.

Owns the tokens that open a message. They are found once for a model, by rendering small chats: so a
prompt need not be rendered again, and one that came as raw text with the same marks is read like
any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ..errors import MlxgenError
from ..tokens import Token, Vocabulary, in_common
from .template.format import Chat

Openings: TypeAlias = tuple[tuple[Token, ...], ...]
"""Runs of tokens: a control token, or the header that a template writes in plain text."""

_LEAST = 3  # characters of a plain-text header, so that a line break is not one


def openings_of(vocabulary: Vocabulary) -> Openings:
    """The runs that open a message in the chats of a vocabulary's model; empty if unknown."""
    return vocabulary.derived("openings", lambda: _found(vocabulary))


def beginnings(tokens: Sequence[Token], openings: Openings) -> list[int]:
    """The places in ``tokens`` where messages begin, in order."""
    ids = np.asarray(tokens, dtype=np.int64)
    found: set[int] = set()
    for run in openings:
        at = np.flatnonzero(ids[: max(0, len(ids) - len(run) + 1)] == run[0])
        for i, token in enumerate(run[1:], 1):
            at = at[ids[at + i] == token]
        found.update(at.tolist())
    return sorted(found)


def _found(vocabulary: Vocabulary) -> Openings:
    """The headers that the template writes before an answer, a user's message and a tool's result,
    each possibly with the end of the message before it."""

    def rendered(messages: Sequence[Any], *, answer: bool = False) -> list[Token]:
        try:
            return Chat(messages, add_generation_prompt=answer).tokens(vocabulary)
        except MlxgenError:  # it does not take these messages
            return []

    def before_content(messages: Sequence[Any], role: Any) -> list[Token]:
        one, other = (rendered([*messages, {**role, "content": text}]) for text in ("a", "b"))
        return one[: in_common(one, other)]

    user = {"role": "user"}
    asked = [{**user, "content": "a"}]
    told = [*asked, {"role": "assistant", "content": "b"}]
    called = [*asked, {"role": "assistant", "content": "", "tool_calls": [_CALL]}]
    tool = {"role": "tool", "tool_call_id": _CALL["id"], "name": "f"}
    question, begun = rendered(asked), rendered(asked, answer=True)
    first, later = before_content([], user), before_content(told, user)
    call, result = rendered(called), before_content(called, tool)
    found: list[tuple[Token, ...]] = []
    for header in (
        begun[in_common(question, begun) :],
        later[len(later) - in_common(first[::-1], later[::-1]) :],
        result[in_common(call, result) :] if call else [],
    ):
        if any(beginnings(header, (run,)) for run in found):
            continue
        pieces = map(vocabulary.piece, header)
        added = [
            t for t, p in zip(header, pieces, strict=True) if t in vocabulary.added and p.strip()
        ]
        if added:
            found.append((added[0],))
        elif len(vocabulary.decode(header).strip()) >= _LEAST:
            found.append(tuple(header))
    return tuple(found)


_CALL: dict[str, Any] = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "f", "arguments": {"a": 1}},
}
