"""How tokens are chosen where nobody says: in chats of the library, the commands and the server.

One rule for all: what the model's makers recommend, and if they recommend nothing, ``BALANCED``.
Raw text of the library and of ``--raw`` is continued greedily.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

SamplingChoice: TypeAlias = Literal["model", "greedy", "openai"]
CHOICES: tuple[SamplingChoice, ...] = ("model", "greedy", "openai")

BALANCED: Mapping[str, Any] = MappingProxyType({"temperature": 0.7, "top_p": 0.95, "min_p": 0.05})
GREEDY: Mapping[str, Any] = MappingProxyType({"temperature": 0.0})
OPENAI: Mapping[str, Any] = MappingProxyType({"temperature": 1.0, "top_p": 1.0})


def sampling_defaults(choice: SamplingChoice, recommended: Mapping[str, Any]) -> dict[str, Any]:
    """The options that hold by default; ``model`` is the rule of the module."""
    chosen = {"model": recommended or BALANCED, "greedy": GREEDY, "openai": OPENAI}
    return dict(chosen[choice])


def in_words(options: Mapping[str, Any]) -> str:
    """Sampling options for a line of the log."""
    return ", ".join(f"{name} {value:g}" for name, value in options.items())
