"""The commands for a device: values that can be written down, and sent to another machine.

Owns the commands and their form in JSON. Must never carry one out (``Runner`` does). A cache is
named by a number. A token that the host has not read yet is a ``Later``; writing it down reads it.
A patch of an image is written as the image's digest and its row: whoever reads that has the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, get_args

from ...images import Image, Patch
from ...tokens import Token
from .held import Fed, Later


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
    """Wait until what a cache holds is computed; with ``None``, all that was put into the prefix
    cache, which drops it if that fails. Then nothing else runs, so it may be written to its folder.
    """

    kv: int | None = None


class Open(NamedTuple):
    """Make an empty cache for a sequence of about ``room`` tokens: a slot."""

    kv: int
    room: int


class Copy(NamedTuple):
    """Make a new cache ``twin`` that holds what ``kv`` holds."""

    kv: int
    twin: int


class Free(NamedTuple):
    """Hold nothing, and give up the place; with ``None``, after a fault, all do so, and what was
    put into the prefix cache since the last ``Wait`` for it is dropped."""

    kv: int | None = None


class Take(NamedTuple):
    """Have a cache that holds nothing, or the file of this path, hold what the prefix cache has of
    these tokens; the result is how many that are."""

    into: int | str
    tokens: tuple[Token, ...]


class Keep(NamedTuple):
    """Put what a cache holds of these tokens into the prefix cache, or what the file of this path
    has, or with ``None`` the block of its folder that they end with, which may have a snapshot.

    The prefix cache may use ``room`` bytes, or with ``None`` its own limit. The result is how many
    tokens of a file or of the folder are held now.
    """

    of: int | str | None
    tokens: tuple[Token, ...]
    room: int | None = None
    has_state: bool = False


class Drop(NamedTuple):
    """Evict from the prefix cache until it holds at most ``to`` bytes; ``for_good``: it never holds
    more from now on."""

    to: int
    for_good: bool = False


Command: TypeAlias = Run | Trim | Wait | Open | Copy | Free | Take | Keep | Drop
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Command)}


def uses_files(command: Command) -> bool:
    """Whether all machines carry it out at a time, each with its own file, and it fails on all if
    it fails on one."""
    return isinstance(command, Take | Keep) and not isinstance(command[0], int)


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
