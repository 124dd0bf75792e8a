"""What all ranks must have in common before they run one model together.

Owns the comparison and the sentence about what differs. A fact is a name with a JSON value.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ..errors import MachineError
from .group import Group

VERSION = "version of "
"""What the names of facts begin with that ``versions`` gives."""
MODEL_FILE = "model file "
"""What the names of facts about a model's files begin with."""

_ADVICE = {
    VERSION: "install the same versions on all machines",
    MODEL_FILE: "copy the model's folder from one machine to the others, or download it again",
    "": "start all ranks with the same options",
}
_MOST = 8  # facts that are named in a message


def agree(group: Group, facts: Mapping[str, Any]) -> None:
    """Compare the facts of all ranks: collective.

    Raises ``MachineError`` on every rank if any differs. Rank 0's says which, and what to do.
    """
    told: list[dict[str, Any]] = group.exchange(dict(facts))
    names = list(dict.fromkeys(name for each in told for name in each))
    differing = [
        name for name in names if len({_text(each, name) for each in told if _has(each, name)}) > 1
    ]
    if not differing:
        return
    if not group.leads:
        raise MachineError(f"{group.name(group.rank)} differs from the others; rank 0 says in what")
    lines = [f"  {name}: {_values(group, told, name)}" for name in differing[:_MOST]]
    if len(differing) > _MOST:
        lines.append(f"  and {len(differing) - _MOST} more")
    kinds = (next(kind for kind in _ADVICE if name.startswith(kind)) for name in differing)
    lines += [_ADVICE[kind] for kind in dict.fromkeys(kinds)]
    raise MachineError("\n".join(["the machines differ:", *lines]))


def _has(facts: Mapping[str, Any], name: str) -> bool:
    """Whether a rank has to have the same; not a file of a model, of which it may need others."""
    return name in facts or not name.startswith(MODEL_FILE)


def _text(facts: Mapping[str, Any], name: str) -> str:
    return json.dumps(facts[name], sort_keys=True) if name in facts else "missing"


def _values(group: Group, told: list[dict[str, Any]], name: str) -> str:
    """Each value, and which ranks have it."""
    holders: dict[str, list[str]] = {}
    for rank, facts in enumerate(told):
        holders.setdefault(_text(facts, name), []).append(group.name(rank))
    return "; ".join(f"{value} on {' and '.join(ranks)}" for value, ranks in holders.items())


def versions() -> dict[str, str]:
    """The versions of what a rank runs, as facts.

    mlxgen's has a digest of its source, as ranks of a development version must not differ either.
    """
    package = Path(__file__).parents[1]
    source = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        source.update(f"{file.relative_to(package).as_posix()} ".encode() + file.read_bytes())
    python = ".".join(platform.python_version_tuple()[:2])
    found = {name: metadata.version(name) for name in ("mlxgen", "mlx", "mlx-lm")}
    found["mlxgen"] += f" ({source.hexdigest()[:12]})"
    return {f"{VERSION}{name}": each for name, each in {**found, "Python": python}.items()}
