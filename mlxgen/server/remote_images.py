"""Images that a request names by http or https addresses, if the server may fetch them.

They are fetched before the request is understood, in threads of their own, and the request then has
them as ``data:`` addresses: so nothing that reads it knows that there is a network. Only images in
messages are fetched, at the places where an API has them; whatever else looks like an image (the
arguments of a call, the schema of a tool, metadata) stays as it is.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from .errors import RequestError
from .fields import Path, place_of
from .http.fetch import FetchError, fetch

MOST_IMAGES = 16  # of one request
MOST_BYTES = 64 << 20  # of all of them


class Named(NamedTuple):
    """The address of an image: ``holder[key]``, at ``path`` in the body."""

    holder: dict[str, Any]
    key: str
    path: Path

    @property
    def url(self) -> str:
        return str(self.holder[self.key])

    def put(self, data: bytes) -> None:
        """Replace the address by one that has the image in it."""
        text = base64.b64encode(data).decode()
        self.holder[self.key] = f"data:application/octet-stream;base64,{text}"


class RemoteImages:
    """Fetches what bodies name; ``get`` gives the bytes at an address. It belongs to the event
    loop. Each request has threads of its own, so that its slow addresses delay no other one."""

    def __init__(self, get: Callable[[str], bytes] = fetch) -> None:
        self._get = get

    async def put_into(self, body: dict[str, Any]) -> None:
        """Put the images into a body; raises ``RequestError``."""
        named = list(addresses_in(body))
        if len(named) > MOST_IMAGES:
            raise RequestError.at(
                place_of(named[MOST_IMAGES].path),
                f"expected at most {MOST_IMAGES} images to fetch, got {len(named)}",
            )
        if not named:
            return
        urls = dict.fromkeys(each.url for each in named)
        found = dict(zip(urls, await self._fetched(list(urls)), strict=True))
        total = 0
        for each in named:
            data = found[each.url]
            if isinstance(data, FetchError):
                raise RequestError(
                    f"{place_of(each.path)}: the image cannot be fetched: {data}",
                    status=data.status,
                    param=place_of(each.path),
                    code="fetch_failed",
                )
            if isinstance(data, BaseException):
                raise data
            total += len(data)
            if total > MOST_BYTES:
                raise RequestError.at(
                    place_of(each.path),
                    f"with this one, the images have more than {MOST_BYTES} bytes; send fewer",
                )
            each.put(data)

    async def _fetched(self, urls: Sequence[str]) -> list[bytes | BaseException]:
        """What is at these addresses, or why it is not known."""
        loop = asyncio.get_running_loop()
        threads = ThreadPoolExecutor(len(urls), "fetch")
        try:
            jobs = [loop.run_in_executor(threads, self._get, url) for url in urls]
            return await asyncio.gather(*jobs, return_exceptions=True)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def addresses_in(body: Mapping[str, Any]) -> Iterator[Named]:
    """The http addresses of images in the messages or input items of a body, in order."""
    for name in ("messages", "input"):
        for path, message in _items(body.get(name), (name,)):
            for key in ("content", "output"):  # of messages, and of what a function returned
                for at, part in _items(message.get(key), (*path, key)):
                    yield from _named(part, at)
                    if part.get("type") == "tool_result":
                        for inner, shown in _items(part.get("content"), (*at, "content")):
                            yield from _named(shown, inner)


def _items(value: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The objects in a list, with their paths."""
    if isinstance(value, list):
        yield from (((*path, i), item) for i, item in enumerate(value) if isinstance(item, dict))


def _named(part: dict[str, Any], path: Path) -> Iterator[Named]:
    """The address in a part of a message, if it has one to fetch."""
    kind = part.get("type")
    if kind == "image_url":
        holder, key, at = part.get("image_url"), "url", (*path, "image_url", "url")
    elif kind == "input_image":
        holder, key, at = part, "image_url", (*path, "image_url")
    elif kind == "image":
        holder, key, at = part.get("source"), "url", (*path, "source", "url")
    else:
        return
    if isinstance(holder, dict):
        url = holder.get(key)
        if isinstance(url, str) and url[:8].lower().startswith(("http://", "https://")):
            yield Named(holder, key, at)
