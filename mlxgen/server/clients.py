"""Configurations for clients of the server: ``--print-config``.

Each client has a template in the folder ``clients``, whose first line says where the text belongs.
Values are quoted as the type of file requires, and a line with ``$secret`` is left out if the
server needs no key. ``docs/agents.md`` shows the same texts.
"""

from __future__ import annotations

import json
import shlex
import sys
from importlib.resources import files
from string import Template
from typing import NamedTuple

KEY_VARIABLE = "MLXGEN_API_KEY"
CONTEXT = 40_960
"""The tokens of the context, for a client, if they are unknown before the model is loaded."""
_FILES = {
    "claude-code": "claude-code.sh",
    "codex": "codex.toml",
    "opencode": "opencode.json",
    "aider": "aider.sh",
    "continue": "continue.yaml",
    "zed": "zed.json",
}
CLIENTS = tuple(_FILES)
_NO_KEY = "none"  # for clients that insist on one
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Served(NamedTuple):
    """A server as a client sees it: its address without a path, and the name of its model."""

    url: str
    model: str
    key: str | None = None
    context: int | None = None

    @classmethod
    def at(
        cls,
        host: str,
        port: int,
        *,
        model: str,
        path: str = "",
        key: str | None = None,
        context: int | None = None,
    ) -> Served:
        """The server that listens at this host and port."""
        name = _EVERYWHERE.get(host, host)
        name = f"[{name}]" if ":" in name else name
        return cls(f"http://{name}:{port}{path.rstrip('/')}", model, key, context)


class Configuration(NamedTuple):
    """The text for a client, and where it belongs."""

    place: str
    text: str


def configuration(client: str, served: Served) -> Configuration:
    """The configuration of one of ``CLIENTS``."""
    name = _FILES[client]
    lines = files(__package__).joinpath("clients", name).read_text("utf-8").splitlines(True)
    if served.key is None:
        lines = [line for line in lines if "$secret" not in line]
    key = served.key or _NO_KEY
    values = {
        "url": served.url,
        "model": served.model,
        "short": served.model.rpartition("/")[2],
        "key": key,
    }
    quoted = shlex.quote if name.endswith(".sh") else _inside_quotes
    told = Template("".join(lines)).substitute(
        {each: quoted(value) for each, value in values.items()},
        context=served.context or CONTEXT,
        secret=shlex.quote(key),
    )
    place, _, text = told.partition("\n")
    return Configuration(place.removeprefix("# "), text)


def print_configuration(client: str, served: Served) -> None:
    """Print the text, and where it belongs on standard error."""
    place, text = configuration(client, served)
    print(place, file=sys.stderr, flush=True)
    print(text, end="", flush=True)


def _inside_quotes(text: str) -> str:
    """Text, escaped for the inside of quotes in TOML, YAML and JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
