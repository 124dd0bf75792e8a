"""``/``: the page for people, if this installation has one.

Owns the files of the folder ``page`` and the policy that they are served with. Must never know
what is in them. Invariant: a browser runs only the scripts and styles of these files, inline or
separate, loads nothing from other hosts, and never treats text as HTML.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
_INLINE = re.compile(r"<(script|style)(?:\s[^>]*)?>(.*?)</\1\s*>", re.DOTALL | re.IGNORECASE)
_FIXED = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class PageFile(NamedTuple):
    """A file as it is served."""

    content: bytes
    media_type: str
    headers: Mapping[str, str]


def read_page(folder: Traversable | None = None) -> dict[str, PageFile]:
    """The files of the page by name; empty if there is no page."""
    root = files(__package__).joinpath("page") if folder is None else folder
    if not root.joinpath(INDEX).is_file():
        return {}
    policy = policy_of(root.joinpath(INDEX).read_text("utf-8"))
    found = {}
    for file in root.iterdir():
        kind = _TYPES.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None and file.is_file():
            headers = {**_FIXED, "content-security-policy": policy}
            found[file.name] = PageFile(file.read_bytes(), kind, headers)
    return found


def policy_of(html: str) -> str:
    """The Content-Security-Policy that allows the page's own scripts and styles, and no others."""
    allowed: dict[str, list[str]] = {"script": ["'self'"], "style": ["'self'"]}
    for tag, text in _INLINE.findall(html):
        if text.strip():
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            allowed[tag.lower()].append(f"'sha256-{digest}'")
    return (
        f"default-src 'none'; script-src {' '.join(allowed['script'])}; "
        f"style-src {' '.join(allowed['style'])}; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
