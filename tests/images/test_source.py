"""What callers pass as an image is decoded within limits, or refused by the name of its field."""

from __future__ import annotations

import base64
import builtins
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxgen.errors import OptionError
from mlxgen.images import Address, Source
from mlxgen.images.source import MOST_PIXELS, decoded

pillow = pytest.importorskip("PIL.Image", reason="images need Pillow")


def file_of(kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    pillow.new("RGB", (3, 2), (200, 10, 30)).save(file, kind, **options)
    return file.getvalue()


def address_of(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_the_usual_formats_are_read(kind: str) -> None:
    found = decoded(Source(file_of(kind), "image"))
    assert found.shape == (2, 3, 3) and found.dtype == np.uint8
    assert np.abs(found.astype(int) - [200, 10, 30]).max() < 12


def test_a_path_bytes_a_pillow_image_and_an_address_are_the_same(tmp_path: Path) -> None:
    data = file_of()
    path = tmp_path / "red.png"
    path.write_bytes(data)
    given: list[Any] = [path, str(path), data, pillow.open(io.BytesIO(data))]
    found = [decoded(Source(each, "image")) for each in given]
    found.append(decoded(Address(address_of(data), "url")))
    found.append(decoded(Address(address_of(data).replace("AAAA", "AA\nAA"), "url")))
    assert all(np.array_equal(each, found[0]) for each in found)


def test_an_image_stands_upright() -> None:
    turned = pillow.Exif()
    turned[0x0112] = 6  # a camera that was held on its side
    assert decoded(Source(file_of("JPEG", exif=turned), "image")).shape == (3, 2, 3)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Source("/nowhere/cat.png", "image"), "^image: '/nowhere/cat.png' cannot be read: No such"),
        (Source(7, "image"), "expected a path, bytes or a Pillow image, got int"),
        (Source(b"%PDF-1.7", "image"), "expected an image in one of the formats PNG, JPEG"),
        (Source(file_of()[:48], "image"), "damaged"),
        (Source(file_of("BMP"), "image"), "expected an image in one of the formats"),
        (Address("https://example.org/cat.png", "url"), "^url: images are fetched only by a"),
        (Address("/etc/passwd", "url"), "expected an address that begins with data:"),
        (Address("file:///etc/passwd", "url"), "expected an address that begins with data:"),
        (Address("data:image/png,abc", "url"), "expected an address that begins with data:"),
        (Address("data:image/png;base64,ab!c", "url"), "the base64 in it is damaged"),
    ],
)
def test_what_is_not_an_image_is_refused_by_its_field(
    source: Address | Source, message: str
) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        decoded(source)
    assert caught.value.field == source.at


def test_a_decompression_bomb_is_not_decoded() -> None:
    small = file_of()
    for side in (7000, 60_000):  # its header, which has the size after 16 bytes, with a checksum
        head = small[12:16] + struct.pack(">II", side, side) + small[24:29]
        bomb = small[:12] + head + struct.pack(">I", zlib.crc32(head)) + small[33:]
        assert side * side > MOST_PIXELS
        with pytest.raises(OptionError, match=r"pixels|formats"):
            decoded(Source(bomb, "image"))


def test_without_pillow_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    really = builtins.__import__

    def missing(name: str, *given: Any, **more: Any) -> Any:
        if name.split(".")[0] == "PIL":
            raise ImportError(name)
        return really(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(OptionError, match=r"pip install 'mlxgen\[images\]'"):
        decoded(Source(b"", "image"))
