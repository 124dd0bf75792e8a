"""How the server and the command line choose tokens by default: ``--sampling-defaults``.

The library itself is greedy: pass it ``lm.recommended`` for the makers' choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

SamplingChoice: TypeAlias = Literal["model", "greedy", "openai"]
CHOICES: tuple[SamplingChoice, ...] = ("model", "greedy", "openai")

GREEDY: Mapping[str, Any] = MappingProxyType({"temperature": 0.0})
OPENAI: Mapping[str, Any] = MappingProxyType({"temperature": 1.0, "top_p": 1.0})


def sampling_defaults(
    choice: SamplingChoice, recommended: Mapping[str, Any], *, otherwise: Mapping[str, Any]
) -> dict[str, Any]:
    """The options that hold by default.

    ``model`` is what the model's makers recommend, or ``otherwise`` if they recommend nothing:
    ``OPENAI`` in the server and ``GREEDY`` on the command line, as in other programs.
    """
    if choice == "model":
        return dict(recommended or otherwise)
    return dict(GREEDY if choice == "greedy" else OPENAI)


def in_words(options: Mapping[str, Any]) -> str:
    """Sampling options for a line of the log."""
    return ", ".join(f"{name} {value:g}" for name, value in options.items())
