"""The commands for a device: values that can be written down, and sent to another machine.

Owns the commands and their JSON form. Must never carry one out (``Runner`` does). A cache is named
by a number. A token that the host has not read yet is a ``Later``; writing it down reads it. A
patch of an image is written as the image's digest and its row: the reader already has the image.
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

    The caches are in slots of one group, in this order; slots between them get only padding, which
    changes nothing. The result is the logits [sum of ``wanted``, vocab] of the last ``wanted``
    tokens of each row, row by row. If none are wanted, it means nothing, and the contents of the
    caches are submitted. If a row wants several, as after a draft, its place is checkpointed first
    if the pass could not be undone. Now and then passes checkpoint by themselves.
    """

    rows: tuple[tuple[int, tuple[Fed, ...]], ...]
    wanted: tuple[int, ...]


class Trim(NamedTuple):
    """Go back to ``to`` tokens, or to fewer, down to 0, if no exact way leads back."""

    kv: int
    to: int


class Wait(NamedTuple):
    """Wait until the contents of a cache are computed; with ``None``, everything put into the
    prefix cache, which drops it if that fails. Nothing else runs then, so it may be written to
    disk."""

    kv: int | None = None


class Open(NamedTuple):
    """Make an empty cache, a slot for a sequence of about ``room`` tokens."""

    kv: int
    room: int


class Copy(NamedTuple):
    """Make a new cache ``twin`` with the contents of ``kv``."""

    kv: int
    twin: int


class Free(NamedTuple):
    """Empty a cache and give up its slot. With ``None``, after a fault: do so with all of them, and
    drop what was put into the prefix cache since the last ``Wait`` for it."""

    kv: int | None = None


class Take(NamedTuple):
    """Fill an empty cache, or the file at this path, with the longest prefix of these tokens that
    the prefix cache has; the result is its number of tokens."""

    into: int | str
    tokens: tuple[Token, ...]


class Keep(NamedTuple):
    """Put these tokens into the prefix cache: from a cache that holds them, or from the saved
    prefix at this path; with ``None``, the block that they end with, from its folder
    (``has_state``: with its snapshot).

    The prefix cache may use ``room`` bytes, or with ``None`` its own limit. The result is how many
    tokens of a file or of the folder are held now.
    """

    of: int | str | None
    tokens: tuple[Token, ...]
    room: int | None = None
    has_state: bool = False


class Drop(NamedTuple):
    """Evict from the prefix cache until it holds at most ``to`` bytes; ``for_good`` makes that its
    limit from now on."""

    to: int
    for_good: bool = False


Command: TypeAlias = Run | Trim | Wait | Open | Copy | Free | Take | Keep | Drop
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Command)}


def uses_files(command: Command) -> bool:
    """Whether all machines carry out the command together, each with its own file, so that a
    failure on one is a failure on all."""
    return isinstance(command, Take | Keep) and not isinstance(command[0], int)


def written(command: Command) -> dict[str, Any]:
    """A command as a JSON object; waits for tokens that are not known yet."""
    fields = {name: _lists(value) for name, value in command._asdict().items()}
    return {"do": type(command).__name__, **fields}


def read(text: Mapping[str, Any], images: Mapping[str, Image] = MappingProxyType({})) -> Command:
    """The command that ``written`` turned into this object; ``images`` has the images by digest."""
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
