"""The parts of a message that has images, as a chat takes them.

Where a message has no image, its content is one string, as every chat template takes it.
"""

from __future__ import annotations

from typing import Any

from ..images import Address


def text_part(text: str) -> dict[str, Any]:
    """A piece of text."""
    return {"type": "text", "text": text}


def image_part(address: str, at: str) -> dict[str, Any]:
    """An image at an address, which ``at`` has in the request."""
    return {"type": "image", "image": Address(address, at)}
