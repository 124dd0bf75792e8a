"""What a device is told: values that can be written down, and sent to another machine.

Owns the commands and their form in JSON. Must never carry one out (``Runner`` does). A cache is
named by a number. A token that the host has not read yet is a ``Later``; written down it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeAlias, get_args

from ...tokens import Token
from .held import Fed, Later


@dataclass(frozen=True, slots=True)
class Run:
    """One forward pass: for each cache its next tokens. Its result are the logits.

    Caches in slots go through together, and alone a single one, or, if they are empty, several that
    are padded to the longest and give no logits. ``merged``: the tokens of all slots in one column,
    one after the other; otherwise runs lie side by side.
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
    """Remember a place that a later ``Trim`` could not get back to.

    ``before`` a pass of so many tokens; 0: where it is worth it, now and then.
    """

    kv: int
    before: int = 0


@dataclass(frozen=True, slots=True)
class Expect:
    """Rewinds are likely: snapshots are worth a copy from now on."""

    kv: int


@dataclass(frozen=True, slots=True)
class Submit:
    """Begin to compute what a cache holds."""

    kv: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until what a cache holds is computed."""

    kv: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A new cache ``twin``, in caches of its own, that holds what ``kv`` does."""

    kv: int
    twin: int


@dataclass(frozen=True, slots=True)
class Join:
    """Go from caches of its own to a slot."""

    kv: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Go from a slot to caches of its own."""

    kv: int


@dataclass(frozen=True, slots=True)
class Free:
    """Hold nothing, in caches of its own; a new cache begins with it, too."""

    kv: int


@dataclass(frozen=True, slots=True)
class Take:
    """Hold what the prefix cache has of these tokens. Its result says how many."""

    kv: int
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """Give what is held to the prefix cache, which may have ``room`` bytes; ``None``: its own."""

    kv: int
    tokens: tuple[Token, ...]
    room: int | None = None


@dataclass(frozen=True, slots=True)
class Shrink:
    """Let the prefix cache hold no more than ``to`` bytes now."""

    to: int


@dataclass(frozen=True, slots=True)
class Clear:
    """Free all slots, whatever is in them."""


Place: TypeAlias = Join | Leave | Free | Copy | Take
Command: TypeAlias = Run | Trim | Snapshot | Expect | Submit | Wait | Place | Keep | Shrink | Clear
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Command)}


class Device(Protocol):
    """What carries commands out."""

    def number(self) -> int:
        """A number for a new cache."""

    def do(self, command: Command) -> Any:
        """Carry out a command: it gives the logits of a pass, the new place of a cache that is
        made, moved or taken, and nothing of the others."""


def written(command: Command) -> dict[str, Any]:
    """A command as JSON has it; this waits for tokens that are not known yet."""
    if isinstance(command, Run):
        rows = [
            [kv, [t.read() if isinstance(t, Later) else t for t in run]] for kv, run in command.rows
        ]
        return {"do": "Run", "rows": rows, "merged": command.merged}
    return {"do": type(command).__name__, **asdict(command)}


def read(text: Mapping[str, Any]) -> Command:
    """A command from what ``written`` made of it."""
    fields = dict(text)
    kind = _KINDS[fields.pop("do")]
    if kind is Run:
        fields["rows"] = tuple((kv, tuple(run)) for kv, run in fields["rows"])
    elif "tokens" in fields:
        fields["tokens"] = tuple(fields["tokens"])
    command: Command = kind(**fields)
    return command
