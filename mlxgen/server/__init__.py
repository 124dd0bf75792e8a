"""HTTP: ``python -m mlxgen.server``, an OpenAI-compatible server for one model or several.

One process: an asyncio front end, and a thread for each loaded model, which alone calls MLX for it.
``main`` runs the server; ``Settings`` and ``serve`` are for programs that start it themselves.
Everything else in this package is internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .__main__ import main
    from .process import serve
    from .settings import Settings

__all__ = ["Settings", "main", "serve"]

_HOMES = {"Settings": "settings", "main": "__main__", "serve": "process"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
