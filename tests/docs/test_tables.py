"""The tables of the pages are complete, and links, anchors and names lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import fields

import pytest

import mlxgen
from mlxgen import Chunk, Guide, PostSamplingResult, Result, filters

from .. import processes
from ..server.running import Running
from ..test_rooms import ROOT as ROOF
from ..test_rooms import floor
from .pages import PAGES, README, ROOT, Page, page

LINKING = [*PAGES, page("mlxgen/demo/README.md")]


def named(cells: Iterable[str], pattern: str) -> list[str]:
    """What a pattern finds in code spans."""
    spans = [span for cell in cells for span in re.findall(r"`([^`]+)`", cell)]
    return [found for span in spans for found in re.findall(pattern, span)]


@pytest.mark.parametrize("program", ["mlxgen.generate", "mlxgen.server"])
def test_the_help_fits_on_a_screen_and_the_long_one_has_more(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, long = (
        processes.run(["-m", program, option]).stdout for option in ("--help", "--help-all")
    )
    assert 0 < len(short.splitlines()) <= 60
    listed, known = (set(re.findall(r"--[a-z][a-z-]+", text)) for text in (short, long))
    assert known > listed > {"--help", "--help-all", "--model"}


def commands() -> set[str]:
    help = processes.run(["-m", "mlxgen.generate", "--chat"], "/help\n").stderr
    return set(re.findall(r"^/(\w+)", help, re.MULTILINE))


def specifications() -> set[str]:
    found = {name for name in filters.__all__ if hasattr(getattr(mlxgen, name, None), "bind")}
    return found - {"Specification"} | {"Replay"}


def settable() -> set[str]:
    names = {name for name in PostSamplingResult.__slots__ if not name.startswith("_")}
    return names - {"position", "attempt"} | {"sampled_token"}


@pytest.mark.parametrize(
    ("name", "heading", "pattern", "there"),
    [
        ("chat", "Commands", r"^/(\w+)", commands),
        ("taking-back", "Filters", r"^\w+$", specifications),
        ("taking-back", "Hooks", r"^\w+", settable),
    ],
)
def test_the_first_column_names_all_there_is(
    name: str, heading: str, pattern: str, there: Callable[[], set[str]]
) -> None:
    first = [row[0] for row in page(f"docs/{name}.md").table(heading)]
    assert set(named(first, pattern)) == there()


def test_the_endpoints_are_all_there(server: Running) -> None:
    first = [row[0] for row in page("docs/server.md").table("Endpoints")]
    known = server.get("/openapi.json").json()["paths"]
    wanted = {f"{method.upper()} {path}" for path in known for method in known[path]}
    assert set(named(first, r"^[A-Z]+ /\S*")) == wanted | {"GET /"}


def test_the_fields_of_a_chunk_and_a_result_are_all_there() -> None:
    library = page("docs/library.md")
    first = [row[0] for row in library.table("Chunks and results")]
    assert sorted(named(first, r"^\w+")) == sorted(field.name for field in fields(Chunk))
    said = named([library.section("Chunks and results")], r"^(?:result\.)?(\w+)$")
    assert {field.name for field in fields(Result)} <= set(said)


def test_what_a_guide_can_do_is_all_there() -> None:
    table = [cell for row in page("docs/controllers.md").table("Programs") for cell in row]
    public = {name for name in vars(Guide) if not name.startswith("_")}
    assert set(named(table, r"\bg\.(\w+)")) == public


def test_the_examples_are_all_there() -> None:
    linked = re.findall(r"scripts/examples/(\w+)\.py\)", page("docs/examples.md").text)
    files = sorted(path.stem for path in (ROOT / "scripts" / "examples").glob("*.py"))
    assert sorted(linked) == files


def test_the_rooms_are_all_drawn_in_the_order_of_their_imports() -> None:
    text = page("docs/architecture.md").text
    drawn = re.findall(r"^  (\w+(?:\.py|/)) ", text, re.MULTILINE)
    package = (ROOT / "mlxgen").iterdir()
    there = {path.name + "/" * path.is_dir() for path in package if path.name != "py.typed"}
    assert set(drawn) == there - {"__pycache__/"}
    rooms = [room.removesuffix("/").removesuffix(".py") for room in drawn if room != "demo/"]
    floors = [floor(ROOF if room == "__init__" else room) for room in rooms]
    assert floors == sorted(floors) and len(rooms) == len(set(rooms))
    for room, inside in re.findall(r"^  (\w+)/ .*\n((?:    \w+/ .*\n)*)", text, re.MULTILINE):
        inner = {path.parent.name for path in (ROOT / "mlxgen" / room).glob("*/__init__.py")}
        assert set(re.findall(r"^    (\w+)/", inside, re.MULTILINE)) == inner, room


@pytest.mark.parametrize("page", LINKING, ids=repr)
def test_links_lead_to_files_and_headings_that_exist(page: Page) -> None:
    for link in page.links:
        path, _, anchor = link.partition("#")
        target = (page.path.parent / path).resolve() if path else page.path
        assert target.exists(), f"{page}: {link}"
        assert target.is_relative_to(ROOT)
        if anchor:
            assert anchor in Page(target).anchors, f"{page}: {link}"


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [README]
    while waiting:
        here = waiting.pop()
        if here.name in reached:
            continue
        reached.add(here.name)
        targets = {(here.path.parent / link.partition("#")[0]).resolve() for link in here.links}
        waiting += [Page(target) for target in targets if target.suffix == ".md"]
    assert {page.name for page in PAGES} <= reached


@pytest.mark.parametrize("page", PAGES, ids=repr)
def test_names_of_the_library_exist(page: Page) -> None:
    for name in re.findall(r"\bmlxgen\.([A-Z]\w+|load|sequence_overlap)", page.text):
        assert hasattr(mlxgen, name), name
    for name in re.findall(r"\blm\.(\w+)", page.text):
        made = ("model", "tokenizer", "vocabulary", "recommended", "name", "draft", "max_context")
        assert hasattr(mlxgen.LanguageModel, name) or name in (*made, "runtime"), name
