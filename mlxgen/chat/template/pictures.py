"""The images in a chat's messages: taken out before the template is rendered, put in after it.

Invariant: the n-th image of the messages is where the template has the n-th place for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ...errors import OptionError, PromptError
from ...images import Address, ImageProcessor, Source
from ...tokens import Token

Messages: TypeAlias = Sequence[Mapping[str, Any]]

MOST_BYTES = 1 << 29  # of pixels, in all images of a prompt
_SCHEMES = ("data:", "http://", "https://")
_KINDS = ("image", "image_url", "input_image")
"""The types of message parts that are images: this library's, and OpenAI's."""


class Pictures(NamedTuple):
    """Messages with only a mark for each image, as templates expect, and the images in order."""

    messages: Messages
    sources: Sequence[Address | Source]

    @classmethod
    def of(cls, messages: Messages, images: ImageProcessor | None) -> Pictures:
        """Take the images out; ``OptionError`` if there are any and ``images`` is None."""
        sources: list[Address | Source] = []
        marked = []
        for i, message in enumerate(messages):
            parts = message.get("content")
            if isinstance(parts, (list, tuple)):
                content = []
                for j, part in enumerate(parts):
                    if is_image(part):
                        sources.append(_source(part, f"messages[{i}].content[{j}]"))
                        part = {"type": "image"}
                    content.append(part)
                message = {**message, "content": content}
            marked.append(message)
        if sources and images is None:
            raise OptionError(
                sources[0].at,
                "this model takes no images; leave them out, or use a model for which mlx-lm has "
                "an image processor",
            )
        return cls(marked, sources)

    def put_into(
        self,
        tokens: Sequence[Token],
        images: ImageProcessor,
        encode: Callable[[str], list[Token]],
    ) -> list[Token]:
        """The tokens of the rendered messages with the patches of each image in its place.

        Raises ``OptionError``, with the name of the field, for anything that is not an image.
        """
        filled: list[Token] = []
        sources = iter(self.sources)
        left = MOST_BYTES
        for token in tokens:
            if token != images.token:
                filled.append(token)
                continue
            source = next(sources)
            text, image = images.read(source)
            left -= image.pixels.nbytes
            if left < 0:
                raise OptionError(
                    source.at,
                    f"with this one, the images have more than {MOST_BYTES} bytes of pixels; send "
                    "fewer, or smaller ones",
                )
            patches = iter(image.patches)
            for each in encode(text):
                filled.append(next(patches) if each == image.token else each)
        return filled


def is_image(part: Any) -> bool:
    """Whether a part of a message is an image."""
    return isinstance(part, Mapping) and part.get("type") in _KINDS


def is_taken(part: Mapping[str, Any], images: ImageProcessor | None) -> bool:
    """Whether a model takes a part's image. False if it takes none, or if the image at an address,
    which a client may have sent, cannot be read."""
    source = None if images is None else _source(part, "")
    if images is None or not isinstance(source, Address):
        return images is not None
    try:
        images.read(source)
    except OptionError:
        return False
    return True


def _source(part: Mapping[str, Any], at: str) -> Address | Source:
    """The address or the source of a part's image."""
    given = part.get("image_url", part.get("image"))
    if isinstance(given, (Address, Source)):
        return given
    name = "image_url" if "image_url" in part else "image"
    if isinstance(given, Mapping):
        given, name = given.get("url"), f"{name}.url"
    at = f"{at}.{name}"
    if given is None:
        raise PromptError(f"{at}: expected an image, got none")
    is_address = isinstance(given, str) and given[:8].lower().startswith(_SCHEMES)
    if isinstance(given, str) and (name != "image" or is_address):
        return Address(given, at)
    return Source(given, at)
