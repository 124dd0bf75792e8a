"""A measured figure, and the tables in which figures are shown, kept and compared.

Every figure is shown with the target that it is held against, met or not. What cannot be measured,
say because a peer failed, is a row as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table


class Figure(NamedTuple):
    """``found`` in words, and as a ``value`` if it is a number that can be compared. ``met`` is
    ``None`` where nothing is ``wanted``."""

    what: str
    found: str
    wanted: str = ""
    met: bool | None = None
    value: float | None = None


def at_least(what: str, value: float, target: float, text: object = None) -> Figure:
    found = f"{value:.3g}" if text is None else str(text)
    return Figure(what, found, f"at least {target:g}", value >= target, value)


def at_most(what: str, value: float, target: float, text: object = None, unit: str = "") -> Figure:
    found = f"{value:.3g}{unit}" if text is None else str(text)
    return Figure(what, found, f"at most {target:g}{unit}", value <= target, value)


def guarded(name: str, figures: Iterable[Figure]) -> Iterator[Figure]:
    """These figures; if measuring one of them fails, that is the last row."""
    try:
        yield from figures
    except Exception as error:
        yield Figure(name, f"failed: {type(error).__name__}: {error}"[:400])


def shown(name: str, figures: Iterable[Figure]) -> Table:
    table = Table("what", "found", "wanted", "", title=name, title_justify="left")
    for figure in figures:
        sign = "" if figure.met is None else "met" if figure.met else "missed"
        table.add_row(figure.what, figure.found, figure.wanted, sign)
    return table


def save(path: Path, found: Mapping[str, Sequence[Figure]]) -> None:
    """Keep the figures of each measurement as JSON."""
    told = {name: [figure._asdict() for figure in figures] for name, figures in found.items()}
    path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def compared(before: Path, after: Path) -> Iterator[Table]:
    """A table for each measurement that two files have: what each found, and the change."""
    one, other = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    for name in [name for name in one if name in other]:
        table = Table("what", before.stem, after.stem, "change", title=name, title_justify="left")
        earlier = {each["what"]: each for each in one[name]}
        later = {each["what"]: each for each in other[name]}
        for what in {**earlier, **later}:
            a, b = earlier.get(what, {}), later.get(what, {})
            values = a.get("value"), b.get("value")
            change = f"{100 * (values[1] / values[0] - 1):+.1f} %" if all(values) else ""
            table.add_row(what, a.get("found", "-"), b.get("found", "-"), change)
        yield table
