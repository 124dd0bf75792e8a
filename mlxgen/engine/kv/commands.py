"""The commands for a device: values that can be written down, and sent to another machine.

Owns the commands and their form in JSON. Must never carry one out (``Runner`` does). A cache is
named by a number. A token that the host has not read yet is a ``Later``; writing it down reads it.
A patch of an image is written as the image's digest and its row: whoever reads that has the image.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, get_args

from ...images import Image, Patch
from ...tokens import Token
from .held import Fed, Here, Later


class Run(NamedTuple):
    """One forward pass over the next tokens of each cache, side by side, padded to the longest run.

    They are in slots of one group, in the order of these; those between them get padding only,
    which changes nothing. The result is the logits [all that are wanted, vocab] of the last
    ``wanted`` tokens of each row, row by row; anything, if none are: then what the caches hold is
    submitted. If several are wanted, as after a draft, this place is remembered if the pass could
    not be undone. Now and then passes do so by themselves.
    """

    rows: tuple[tuple[int, tuple[Fed, ...]], ...]
    wanted: tuple[int, ...]


class Trim(NamedTuple):
    """Go back to at most ``to`` tokens; to 0 also if a pass failed half-way through the layers."""

    kv: int
    to: int


class Wait(NamedTuple):
    """Wait until what a cache holds is computed."""

    kv: int


class Open(NamedTuple):
    """Make an empty cache for a sequence of about ``room`` tokens: a slot."""

    kv: int
    room: int


class Copy(NamedTuple):
    """Make a new cache ``twin`` that holds what ``kv`` holds."""

    kv: int
    twin: int


class Free(NamedTuple):
    """Hold nothing, and give up the place."""

    kv: int


class Take(NamedTuple):
    """Hold what the prefix cache has of these tokens, with nothing held before; the result is
    whether it has any of them."""

    kv: int
    tokens: tuple[Token, ...]


class Keep(NamedTuple):
    """Put what is held of these tokens into the prefix cache.

    The prefix cache may use ``room`` bytes, or with ``None`` its own limit.
    """

    kv: int
    tokens: tuple[Token, ...]
    room: int | None = None


class Drop(NamedTuple):
    """Evict from the prefix cache until it holds at most ``to`` bytes; ``for_good``: it never holds
    more from now on."""

    to: int
    for_good: bool = False


class Settle(NamedTuple):
    """Wait until all that was put into the prefix cache is computed, and drop it if that fails.
    Nothing else runs now, so it may be written to its folder."""


class Restore(NamedTuple):
    """Read the block that these tokens end with from the folder of the prefix cache, which may use
    ``room`` bytes, and its snapshot if it ``has_state``; the result is whether it is held now.

    Every machine reads its own file before one of them holds it.
    """

    tokens: tuple[Token, ...]
    has_state: bool
    room: int | None = None


class Save(NamedTuple):
    """Write what the prefix cache has of these tokens to a file; the result is how many."""

    path: str
    tokens: tuple[Token, ...]


class Load(NamedTuple):
    """Put what a file has into the prefix cache; the result is how many tokens.

    Every machine reads its own file before one of them puts anything in; the tokens are those of
    ``key``.
    """

    path: str
    key: str


class Clear(NamedTuple):
    """Free all slots, whatever is in them, and drop what was put into the prefix cache since the
    last ``Settle``."""


Together: TypeAlias = Restore | Save | Load
"""What all machines do at a time, and what fails on all if it fails on one."""
Changed: TypeAlias = Drop | Settle | Together
Command: TypeAlias = Run | Trim | Wait | Open | Copy | Free | Take | Keep | Changed | Clear
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Command)}


class Device(Here, ABC):
    """Carries out commands; everything that the host asks of a device."""

    @abstractmethod
    def number(self) -> int:
        """A number for a new cache."""

    @abstractmethod
    def do(self, command: Command) -> Any:
        """Carry out a command; returns the logits of a ``Run``, the slot for ``Open`` and ``Copy``,
        how many tokens for ``Save`` and ``Load``, whether for ``Take`` and ``Restore``, and None
        for all others."""


def written(command: Command) -> dict[str, Any]:
    """A command as a JSON object; this waits for tokens that are not known yet."""
    fields = {name: _lists(value) for name, value in command._asdict().items()}
    return {"do": type(command).__name__, **fields}


def read(text: Mapping[str, Any], images: Mapping[str, Image] = MappingProxyType({})) -> Command:
    """The command that ``written`` turned into this object; ``images`` by their digests."""
    fields = {name: _tuples(value, images) for name, value in text.items()}
    command: Command = _KINDS[fields.pop("do")](**fields)
    return command


def _lists(value: Any) -> Any:
    if isinstance(value, Later):
        return value.read()
    if isinstance(value, Patch):
        return {"image": value.image.digest, "row": value.row}
    return [_lists(item) for item in value] if isinstance(value, tuple) else value


def _tuples(value: Any, images: Mapping[str, Image]) -> Any:
    if isinstance(value, dict):
        return Patch(images[value["image"]], value["row"])
    return tuple([_tuples(item, images) for item in value]) if isinstance(value, list) else value
