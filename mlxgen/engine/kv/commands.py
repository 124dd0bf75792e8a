"""The commands for a device: values that can be written down, and sent to another machine.

Owns the commands and their form in JSON. Must never carry one out (``Runner`` does). A cache is
named by a number. A token that the host has not read yet is a ``Later``; writing it down reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeAlias, get_args

from ...tokens import Token
from .held import Fed, Later


@dataclass(frozen=True, slots=True)
class Run:
    """One forward pass over the next tokens of each cache; its result is the logits.

    Caches in slots run together. A cache on its own runs alone; several empty ones run together,
    padded to the longest, and give no logits. ``merged``: the tokens of all slots are in one
    column, one after the other; otherwise their runs are side by side.
    """

    rows: tuple[tuple[int, tuple[Fed, ...]], ...]
    merged: bool = False


@dataclass(frozen=True, slots=True)
class Trim:
    """Go back to at most ``to`` tokens."""

    kv: int
    to: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Remember a place that a later ``Trim`` could not go back to.

    ``before`` is the number of tokens of the pass that follows; with 0, a place is remembered
    now and then, if it is worth it.
    """

    kv: int
    before: int = 0


@dataclass(frozen=True, slots=True)
class Expect:
    """Expect rewinds: snapshots are worth a copy from now on."""

    kv: int


@dataclass(frozen=True, slots=True)
class Submit:
    """Start computing what a cache holds."""

    kv: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until what a cache holds is computed."""

    kv: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Make a new cache ``twin``, in caches of its own, that holds what ``kv`` holds."""

    kv: int
    twin: int


@dataclass(frozen=True, slots=True)
class Join:
    """Move from caches of its own to a slot."""

    kv: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Move from a slot to caches of its own."""

    kv: int


@dataclass(frozen=True, slots=True)
class Free:
    """Hold nothing, in caches of its own; also the first command of a new cache."""

    kv: int


@dataclass(frozen=True, slots=True)
class Take:
    """Hold what the prefix cache has of these tokens; the result is the new place, or None."""

    kv: int
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """Put what is held into the prefix cache.

    The prefix cache may use ``room`` bytes, or with ``None`` its own limit.
    """

    kv: int
    tokens: tuple[Token, ...]
    room: int | None = None


@dataclass(frozen=True, slots=True)
class Shrink:
    """Evict from the prefix cache until it holds at most ``to`` bytes."""

    to: int


@dataclass(frozen=True, slots=True)
class Clear:
    """Free all slots, whatever is in them."""


Place: TypeAlias = Join | Leave | Free | Copy | Take
Command: TypeAlias = Run | Trim | Snapshot | Expect | Submit | Wait | Place | Keep | Shrink | Clear
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Command)}


class Device(Protocol):
    """Carries out commands."""

    def number(self) -> int:
        """A number for a new cache."""

    def do(self, command: Command) -> Any:
        """Carry out a command; returns the logits of a ``Run``, the new place of a cache for
        ``Place``, and None for all others."""


def written(command: Command) -> dict[str, Any]:
    """A command as a JSON object; this waits for tokens that are not known yet."""
    if isinstance(command, Run):
        rows = [
            [kv, [t.read() if isinstance(t, Later) else t for t in run]] for kv, run in command.rows
        ]
        return {"do": "Run", "rows": rows, "merged": command.merged}
    return {"do": type(command).__name__, **asdict(command)}


def read(text: Mapping[str, Any]) -> Command:
    """The command that ``written`` turned into this object."""
    fields = dict(text)
    kind = _KINDS[fields.pop("do")]
    if kind is Run:
        fields["rows"] = tuple((kv, tuple(run)) for kv, run in fields["rows"])
    elif "tokens" in fields:
        fields["tokens"] = tuple(fields["tokens"])
    command: Command = kind(**fields)
    return command
