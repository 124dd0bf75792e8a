"""What programs that talk to a server have to be told about it: ``--print-config``.

Owns the text for each client, and where it belongs. ``docs/agents.md`` shows the same texts.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

CLIENTS = ("claude-code", "codex", "opencode", "aider", "continue", "zed")
KEY_VARIABLE = "MLXGEN_API_KEY"
CONTEXT = 40_960
"""The tokens of a context that is not known before the model is loaded."""
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
        path: str = "",
        model: str | None = None,
        key: str | None = None,
        context: int | None = None,
    ) -> Served:
        """The server that listens there; ``model`` is a folder, a hub id or the demo model."""
        name = _EVERYWHERE.get(host, host)
        name = f"[{name}]" if ":" in name else name
        served = "demo" if model is None else model
        folder = Path(served).expanduser()
        if folder.is_dir():
            served = folder.resolve().name
        return cls(f"http://{name}:{port}{path.rstrip('/')}", served, key, context)

    @property
    def some_key(self) -> str:
        """The key, or a word for clients that insist on one."""
        return self.key or _NO_KEY


class Configuration(NamedTuple):
    """The text for a client, and where it belongs."""

    place: str
    text: str


def configuration(client: str, served: Served) -> Configuration:
    """What one of ``CLIENTS`` has to be told."""
    place, make = _MAKERS[client]
    return Configuration(place, make(served))


def print_configuration(client: str, served: Served) -> None:
    """Print the text, and on standard error where it belongs."""
    place, text = configuration(client, served)
    print(place, file=sys.stderr, flush=True)
    print(text, end="", flush=True)


def _exported(**variables: str) -> str:
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return f"export {' '.join(words)}\n"


def _quoted(text: str) -> str:
    """A string of TOML, YAML or JSON."""
    return json.dumps(text, ensure_ascii=False)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _claude_code(served: Served) -> str:
    address = _exported(ANTHROPIC_BASE_URL=served.url, ANTHROPIC_API_KEY=served.some_key)
    model = _exported(ANTHROPIC_MODEL=served.model, ANTHROPIC_DEFAULT_HAIKU_MODEL=served.model)
    return f"{address}{model}claude\n"


def _codex(served: Served) -> str:
    lines = [
        f"model = {_quoted(served.model)}",
        'model_provider = "mlxgen"',
        "",
        "[model_providers.mlxgen]",
        'name = "mlxgen"',
        f"base_url = {_quoted(f'{served.url}/v1')}",
        'wire_api = "responses"',
    ]
    if served.key is not None:
        needed = _exported(**{KEY_VARIABLE: served.key}).strip()
        lines.append(f'env_key = "{KEY_VARIABLE}"  # {needed}')
    return "\n".join(lines) + "\n"


def _opencode(served: Served) -> str:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{served.url}/v1", "apiKey": served.some_key},
        "models": {served.model: {}},
    }
    return _json({"model": f"mlxgen/{served.model}", "provider": {"mlxgen": provider}})


def _aider(served: Served) -> str:
    address = _exported(OPENAI_API_BASE=f"{served.url}/v1", OPENAI_API_KEY=served.some_key)
    return f"{address}aider --model {shlex.quote(f'openai/{served.model}')}\n"


def _continue(served: Served) -> str:
    lines = [
        "name: local",
        "version: 0.0.1",
        "schema: v1",
        "models:",
        "  - name: mlxgen",
        "    provider: openai",
        f"    model: {_quoted(served.model)}",
        f"    apiBase: {_quoted(f'{served.url}/v1')}",
        f"    apiKey: {_quoted(served.some_key)}",
        "    roles: [chat, edit, apply]",
    ]
    return "\n".join(lines) + "\n"


def _zed(served: Served) -> str:
    model = {
        "name": served.model,
        "display_name": served.model.rpartition("/")[2],
        "max_tokens": served.context or CONTEXT,
        "capabilities": {"tools": True, "images": False},
    }
    provider = {"api_url": f"{served.url}/v1", "available_models": [model]}
    return _json({"language_models": {"openai_compatible": {"mlxgen": provider}}})


_SHELL = "run this in the project's folder"
_MAKERS: Mapping[str, tuple[str, Callable[[Served], str]]] = {
    "claude-code": (_SHELL, _claude_code),
    "codex": ("put this into ~/.codex/config.toml", _codex),
    "opencode": ("put this into opencode.json in the project's folder", _opencode),
    "aider": (_SHELL, _aider),
    "continue": ("put this into ~/.continue/config.yaml", _continue),
    "zed": (f"put this into Zed's settings.json; the key, if any, is ${KEY_VARIABLE}", _zed),
}
