"""The content of a message as a chat takes it: one string, or, if there are images in it, parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from ..images import Address

Content: TypeAlias = str | list[dict[str, Any]]


def content_of(pieces: Iterable[str | dict[str, Any]]) -> Content:
    """Texts and images, in their order; text without images is one string, as every chat template
    takes it."""
    found = list(pieces)
    if all(isinstance(piece, str) for piece in found):
        return "".join([piece for piece in found if isinstance(piece, str)])
    return [{"type": "text", "text": piece} if isinstance(piece, str) else piece for piece in found]


def image_part(address: str, at: str) -> dict[str, Any]:
    """An image at an address, which ``at`` has in the request."""
    return {"type": "image", "image": Address(address, at)}
