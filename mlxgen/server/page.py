"""``/``: the page for people.

Owns the files of the folder ``page`` and the policy that they are served with. Must never know
what is in them. Invariant: a browser runs only the scripts and styles of these files, loads nothing
from other hosts, and never treats text as HTML.
"""

from __future__ import annotations

from importlib.resources import files

from fastapi import Response

INDEX = "index.html"
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
}


def read_page() -> dict[str, Response]:
    """The files of the page as they are served, by name."""
    return {
        file.name: Response(file.read_bytes(), headers=_HEADERS, media_type=_TYPES[kind])
        for file in files(__package__).joinpath("page").iterdir()
        if (kind := file.name.rpartition(".")[2]) in _TYPES
    }
