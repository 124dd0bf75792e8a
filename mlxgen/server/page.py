"""``/``: the page for people.

Owns the files of the folder ``page``, its libraries in ``vendor`` included, and the policy that
they are served with. Must never know what is in them, but for the import map of the page itself,
which the policy allows by its hash. Invariant: a browser runs only the scripts and styles of these
files, loads nothing from other hosts, and never treats text as HTML.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import Response

INDEX = "index.html"
_TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "mjs": "text/javascript",
    "css": "text/css",
    "woff2": "font/woff2",
}
_IMPORTS = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_POLICY = "content-security-policy"


def _policy(scripts: str) -> str:
    """The policy of a page that may run its own files and ``scripts``, hashes of what is in it."""
    return (
        f"default-src 'none'; script-src 'self'{scripts}; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def read_page() -> dict[str, Response]:
    """The files of the page as they are served, by their paths below the folder ``page``."""
    return {
        name: _served(file.read_bytes(), _TYPES[kind])
        for name, file in _files(files(__package__).joinpath("page"))
        if (kind := name.rpartition(".")[2]) in _TYPES
    }


def unless_kept(file: Response, known: str | None) -> Response:
    """The file, or, to a browser whose ``If-None-Match`` names it, that it has not changed."""
    if known is None or file.headers["etag"] not in known:
        return file
    kept = {name: file.headers[name] for name in ("etag", _POLICY, *_HEADERS)}
    return Response(status_code=304, headers=kept)


def _files(folder: Traversable, above: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{above}{entry.name}/")
        else:
            yield above + entry.name, entry


def _served(content: bytes, kind: str) -> Response:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    maps = _IMPORTS.findall(content.decode()) if kind == "text/html" else []
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in maps]
    policy = _policy("".join(f" 'sha256-{each}'" for each in hashes))
    # A browser keeps a file for as long as it likes, and asks each time whether it has changed.
    return Response(content, headers=_HEADERS | {"etag": etag, _POLICY: policy}, media_type=kind)
