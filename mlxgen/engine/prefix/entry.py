"""The names of pieces: what a folder knows of a piece without opening it.

Owns where sequences are cut, the keys, and the names of files. Must never know the arrays.

A sequence is cut at multiples of ``CELL`` tokens, whatever its edges in memory were, so that
conversations, restarts and servers come to the same pieces. A whole piece covers a cell; the last
one may be the beginning of a cell. A key is a hash of the key of the tokens before the cell and of
the tokens in the piece; the first one of all follows the key of the model. So a key stands for
all tokens up to the end of a piece, and for the model that ran them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from .tree import TokenIds

CELL = 256
_BYTES = 20  # of a key: nobody finds two inputs of the same one
_NAME = re.compile(
    rf"([0-9a-f]{{{2 * _BYTES}}})\.([0-9a-f]{{{2 * _BYTES}}})\.([0-9]{{1,12}})\.([0-9]{{1,12}})"
    r"\.(kv|state)\.safetensors"
)


def key_of(text: str) -> str:
    """The key of no tokens yet, of the model that ``text`` tells from all others."""
    return blake2b(text.encode(), digest_size=_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """``tokens`` after ``start`` others, whose key is ``parent``.

    ``has_state``: whether the piece holds the state after the last of them, if the model has
    layers that need one. ``nbytes``: the size of its file, if there is one.
    """

    parent: str
    start: int
    tokens: TokenIds = field(repr=False, compare=False)
    has_state: bool = False
    nbytes: int = field(default=0, compare=False)
    key: str = field(init=False)

    def __post_init__(self) -> None:
        tokens = self.tokens.astype("<i8").tobytes()
        key = blake2b(bytes.fromhex(self.parent) + tokens, digest_size=_BYTES).hexdigest()
        object.__setattr__(self, "key", key)

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)

    @property
    def name(self) -> Name:
        return Name(self.key, self.parent, self.start, len(self.tokens), self.has_state)


def entries_of(root: str, ids: TokenIds, *, has_state: bool) -> Iterator[Entry]:
    """The pieces that ``ids`` are cut into; the last one with a state, if there is to be one."""
    parent = root
    for start in range(0, len(ids), CELL):
        last = start + CELL >= len(ids)
        entry = Entry(parent, start, ids[start : start + CELL], has_state and last)
        yield entry
        parent = entry.key


@dataclass(frozen=True, slots=True)
class Name:
    """What the name of a piece's file says."""

    key: str
    parent: str
    start: int
    count: int
    has_state: bool

    @classmethod
    def parsed(cls, name: str) -> Name | None:
        """What a file's name says; ``None`` if it is not that of a piece."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        key, parent, start, count, kind = match.groups()
        return cls(key, parent, int(start), int(count), kind == "state")

    def with_state(self) -> Name:
        """The name of the piece that holds the state as well."""
        return replace(self, has_state=True)

    def __str__(self) -> str:
        kind = "state" if self.has_state else "kv"
        return f"{self.key}.{self.parent}.{self.start}.{self.count}.{kind}.safetensors"
