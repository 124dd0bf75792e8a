"""Images that a request names by http or https addresses, if the server may fetch them.

They are fetched before the request is understood, in threads of their own, and the request then has
them as ``data:`` addresses: so nothing behind this knows that there is a network.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from .errors import RequestError
from .fields import Path, place_of
from .http.fetch import FetchError, fetch

THREADS = 4
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
    loop."""

    def __init__(self, get: Callable[[str], bytes] = fetch) -> None:
        self._get = get
        self._threads = ThreadPoolExecutor(THREADS, "fetch")

    def close(self) -> None:
        """Start nothing new."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def put_into(self, body: dict[str, Any]) -> int:
        """Put the images into a body; returns their bytes. Raises ``RequestError``."""
        named = list(addresses_in(body))
        if len(named) > MOST_IMAGES:
            raise RequestError.at(
                place_of(named[MOST_IMAGES].path),
                f"expected at most {MOST_IMAGES} images to fetch, got {len(named)}",
            )
        loop = asyncio.get_running_loop()
        urls = dict.fromkeys(each.url for each in named)
        jobs = [loop.run_in_executor(self._threads, self._get, url) for url in urls]
        found = dict(zip(urls, await asyncio.gather(*jobs, return_exceptions=True), strict=True))
        total = 0
        for each in named:
            data = found[each.url]
            if isinstance(data, FetchError):
                raise RequestError.at(
                    place_of(each.path), f"the image cannot be fetched: {data}", "fetch_failed"
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
        return total


def addresses_in(body: Mapping[str, Any]) -> Iterator[Named]:
    """The http addresses of images in a body of any API, in order."""
    waiting: list[tuple[Path, Any]] = [((), body)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            yield from _named(value, path)
            waiting += [((*path, key), inner) for key, inner in reversed(value.items())]
        elif isinstance(value, list):
            waiting += [((*path, i), value[i]) for i in reversed(range(len(value)))]


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
