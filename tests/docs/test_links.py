"""Links, anchors and names in the pages lead somewhere."""

from __future__ import annotations

import re

import pytest

import mlxgen

from .pages import PAGES, README, ROOT, Page, page

LINKING = [*PAGES, page("mlxgen/demo/README.md")]


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
