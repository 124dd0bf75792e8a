"""The structure: imports point one way, there are no circles, nothing is too large to read, and
tests go through few doors.

Every import counts: those inside of functions, and those for type checkers only.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from .docs.pages import PAGES, README

TOP = Path(__file__).parent.parent
PACKAGE = TOP / "mlxgen"
ROOT = ""
"""``mlxgen/__init__.py``."""

FLOORS = (
    ("errors",),
    ("forks", "open_files", "recent", "search", "words", "workers"),
    ("tokens",),
    ("text", "filters", "sampling", "images"),
    ("options",),
    ("loading", "chat"),
    ("engine",),
    ("machines", "progress"),
    ("language_model",),
    ("load", "programs"),
    (ROOT,),
    ("arguments", "terminal"),
    ("generate", "models", "server"),
)
"""Rooms and single files from the ground up: each may import from below, and from nowhere else."""

WEB = ("pydantic", "fastapi", "uvicorn")
WITHOUT: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(
        ("errors", "tokens", "text", "filters", "options", "images", "chat"),
        ("mlx", "mlx_lm", *WEB),
    ),
    "terminal": WEB,
}
"""What rooms do without, of which importing them must load nothing."""
WRAPS = "tokens.vocabulary"
"""It knows mlx-lm's tokenizers, and puts one around others when it gets them."""


@cache
def modules() -> Mapping[str, Path]:
    """Every module of the package by its name, without ``mlxgen.``."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts).removesuffix("__init__").removesuffix(".")] = path
    return found


def imported(name: str) -> Iterator[str]:
    """What a module imports, by absolute names; of a ``from`` each name that it may be."""
    yield from imports_of(modules()[name], name)


def imports_of(path: Path, name: str) -> Iterator[str]:
    inside = ["mlxgen", *filter(None, name.split("."))]
    package = inside if path.stem == "__init__" else inside[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


@cache
def arrows() -> Mapping[str, frozenset[str]]:
    """For each module those of the package that it imports."""
    known = modules()
    return {name: frozenset(own(imported(name)) - {name}) & known.keys() for name in known}


def own(targets: Iterable[str]) -> set[str]:
    """Those of imported names that are of the package, as modules."""
    inner = {
        target.removeprefix("mlxgen").removeprefix(".")
        for target in targets
        if target == "mlxgen" or target.startswith("mlxgen.")
    }
    return {name if name in modules() else name.rpartition(".")[0] for name in inner}


def floor(name: str) -> int:
    room = name.partition(".")[0]
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def test_no_modules_import_each_other() -> None:
    TopologicalSorter(arrows()).prepare()  # or it names a circle


def test_rooms_import_from_below_only() -> None:
    floors = {name: floor(name) for name in modules()}  # every room has one
    found = {
        (name, target)
        for name, targets in arrows().items()
        for target in targets
        if name.partition(".")[0] != target.partition(".")[0] and floors[target] >= floors[name]
    }
    assert not found, "import from below, or move what is needed down"


@pytest.mark.parametrize("room", ["progress", "terminal", "generate", "server"])
def test_above_the_model_only_the_face_of_the_engine_is_known(room: str) -> None:
    for name, targets in arrows().items():
        if name.partition(".")[0] == room:
            assert not [target for target in targets if target.startswith("engine.")], name


@pytest.mark.parametrize("room", WITHOUT)
def test_a_room_does_without_what_is_slow_to_import(room: str) -> None:
    names = [name for name in modules() if name.partition(".")[0] == room]
    for name in names:
        heavy = {target for target in imported(name) if target.split(".")[0] in WITHOUT[room]}
        if name == WRAPS:
            heavy.discard("mlx_lm.tokenizer_utils.TokenizerWrapper")
        assert not heavy, name
    script = "; ".join(f"import mlxgen.{name}" for name in names)
    script += f"; import sys; assert not {set(WITHOUT[room])} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def longest(paths: Iterable[Path]) -> int:
    return max(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


OTHERS = [page for page in PAGES if page is not README]
SIZES: dict[str, tuple[int, Callable[[], int]]] = {
    "lines of a file of the package": (450, lambda: longest(modules().values())),
    "lines of an example": (90, lambda: longest((TOP / "scripts" / "examples").glob("*.py"))),
    "lines of the README": (130, lambda: len(README.text.splitlines())),
    "words of the other pages": (18_000, lambda: sum(len(page.text.split()) for page in OTHERS)),
    "bytes of the demo models": (8_000_000, lambda: bytes_below(PACKAGE / "demo")),
}


@pytest.mark.parametrize("what", SIZES)
def test_nothing_is_too_large(what: str) -> None:
    most, measure = SIZES[what]
    assert 0 < measure() <= most


SEAMS = {
    "engine.kv.kv",
    "engine.kv.commands",
    "engine.prefix",
    "engine.prefix.store",
    "engine.request",
    "engine.request.request",
    "engine.kv.runner",
    "chat.events",
}
"""What tests go through, beside each room's own face (``mlxgen.engine``, ``mlxgen.filters``): what
is behind it may be written anew without them."""
INSIDE = 66
"""Files of tests that import something else, at most. Lower it with what it counts."""


def test_no_more_tests_import_what_is_behind_the_seams() -> None:
    inside = {}
    for path in sorted(Path(__file__).parent.rglob("test_*.py")):
        behind = {name for name in own(imports_of(path, "")) if "." in name} - SEAMS
        if behind:
            inside[path.relative_to(TOP).as_posix()] = sorted(behind)
    told = "\n".join(f"{path}: {', '.join(names)}" for path, names in inside.items())
    assert len(inside) <= INSIDE, f"{len(inside)} files, not {INSIDE}:\n{told}"
