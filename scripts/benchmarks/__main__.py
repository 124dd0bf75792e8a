"""``scripts/bench``: runs measurements and prints each figure next to its target."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
from rich.console import Console

import mlxgen

from . import (
    agents,
    batch,
    calls,
    drafts,
    kit,
    machines,
    prefix,
    primitives,
    serving,
    simulate,
    single,
    soak,
)

MEASUREMENTS: dict[str, Callable[[argparse.Namespace], Iterator[kit.Figure]]] = {
    "single": lambda given: single.figures(given.turns),
    "calls": lambda given: calls.figures(),
    "batch": lambda given: batch.figures(given.turns),
    "primitives": lambda given: primitives.figures(),
    "prefix": lambda given: prefix.figures(given.turns),
    "drafts": lambda given: drafts.figures(given.turns, given.model),
    "simulate": lambda given: simulate.figures(),
    "serving": lambda given: serving.figures(given.turns),
    "agents": lambda given: agents.figures(),
    "disk": lambda given: prefix.disk_figures(given.turns),
    "machines": lambda given: machines.figures(given.turns),
    "soak": lambda given: soak.figures(given.requests),
}
LONG = ("agents", "disk", "machines", "soak")  # run only if named


def main() -> int:
    """Run the named measurements; returns the exit status."""
    arguments = _arguments()
    console = Console(width=150 if not sys.stdout.isatty() else None)
    if arguments.names[:1] == ["compare"]:
        for table in kit.compared(*map(Path, arguments.names[1:])):
            console.print(table)
        return 0
    console.print(f"mlxgen {mlxgen.__version__}, {mx.default_device()}, {platform.processor()}")
    found: dict[str, list[kit.Figure]] = {}
    for name in arguments.names or (name for name in MEASUREMENTS if name not in LONG):
        found[name] = list(kit.guarded(name, MEASUREMENTS[name](arguments)))
        console.print(kit.shown(name, found[name]))
        if arguments.json is not None:
            kit.save(arguments.json, found)
    missed = any(figure.met is False for each in found.values() for figure in each)
    return int(missed and arguments.strict)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=(__doc__ or "").strip())
    listed = f"{', '.join(MEASUREMENTS)} (all but the last four, which take long); or compare A B"
    parser.add_argument("names", nargs="*", metavar="NAME", help=listed)
    parser.add_argument("--turns", type=int, default=15, help="alternations of each pair (15)")
    parser.add_argument(
        "--requests", type=int, default=20_000, help="of the soak (20000, some 15 minutes)"
    )
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="a real model, on which drafts are tried, too"
    )
    parser.add_argument("--strict", action="store_true", help="exit status 1 for a missed target")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures, for compare")
    arguments = parser.parse_args()
    if arguments.names[:1] == ["compare"]:
        if len(arguments.names) != 3:
            parser.error("compare: give the two files that --json has written")
    elif unknown := set(arguments.names) - set(MEASUREMENTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {listed}")
    if arguments.turns < 1 or arguments.requests < 2:
        parser.error("--turns: give 1 or more; --requests: 2 or more")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
