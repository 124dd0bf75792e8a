"""The images in a chat's messages: taken out before the template is rendered, put in after it.

Invariant: the n-th image of the messages is where the template has the n-th place for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ...errors import OptionError, PromptError
from ...images import Address, Image, ImageProcessor, Source
from ...tokens import Token

Messages: TypeAlias = Sequence[Mapping[str, Any]]

MOST_BYTES = 1 << 29  # of the pixels of all images of a prompt
KINDS = ("image", "image_url", "input_image")
"""The parts of a message that are images, in this library's words and in OpenAI's."""


class Pictures(NamedTuple):
    """Messages whose images are only marked, as templates want it, and the images in order."""

    messages: Messages
    sources: Sequence[Address | Source]

    @classmethod
    def of(cls, messages: Messages) -> Pictures:
        """Take the images out; the messages themselves if they have none."""
        sources: list[Address | Source] = []
        marked = []
        for i, message in enumerate(messages):
            parts = message.get("content")
            if not isinstance(parts, (list, tuple)) or not any(map(is_image, parts)):
                marked.append(message)
                continue
            content = []
            for j, part in enumerate(parts):
                if is_image(part):
                    sources.append(_source(part, f"messages[{i}].content[{j}]"))
                    part = {"type": "image"}
                content.append(part)
            marked.append({**message, "content": content})
        return cls(marked, sources) if sources else cls(messages, ())

    def check(self, images: ImageProcessor | None) -> None:
        """Raise ``OptionError`` if there are images and nothing reads them."""
        if self.sources and images is None:
            raise OptionError(
                self.sources[0].at,
                "this model takes no images; leave them out, or use a model for which mlx-lm has "
                "an image processor",
            )

    def put_into(
        self,
        tokens: Sequence[Token],
        images: ImageProcessor,
        encode: Callable[[str], list[Token]],
    ) -> list[Token]:
        """The tokens of the rendered messages with the patches of each image in its place.

        Raises ``OptionError`` for what is not an image, by the name of its field.
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
            filled += _expanded(encode(text), image)
        return filled


def is_image(part: Any) -> bool:
    """Whether a part of a message is an image."""
    return isinstance(part, Mapping) and part.get("type") in KINDS


def _source(part: Mapping[str, Any], at: str) -> Address | Source:
    """Where the image of a part comes from."""
    given = part.get("image_url", part.get("image"))
    if isinstance(given, (Address, Source)):
        return given
    name = "image_url" if "image_url" in part else "image"
    if isinstance(given, Mapping):
        given, name = given.get("url"), f"{name}.url"
    at = f"{at}.{name}"
    if given is None:
        raise PromptError(f"{at}: expected an image, got none")
    if isinstance(given, str) and (name != "image" or _is_address(given)):
        return Address(given, at)
    return Source(given, at)


def _is_address(text: str) -> bool:
    return text[:8].lower().startswith(("data:", "http://", "https://"))


def _expanded(tokens: Sequence[Token], image: Image) -> list[Token]:
    patches = iter(image.patches)
    return [next(patches) if token == image.token else token for token in tokens]
