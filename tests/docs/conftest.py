"""One demo model for the commands and examples of all pages."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

import mlxgen
from mlxgen import LanguageModel

_load = mlxgen.load


@pytest.fixture(scope="session")
def lm() -> LanguageModel:
    return _load()


@pytest.fixture
def reader(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Somebody who tries a page out: in an empty folder, with the demo model loaded already."""

    @functools.wraps(_load)
    def load(path: object = None, **options: object) -> LanguageModel:
        given = {name: value for name, value in options.items() if value}
        return lm if path is None and not given else _load(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(mlxgen, "load", load)
    monkeypatch.setattr(sys.modules["mlxgen.load"], "load", load)
    monkeypatch.chdir(tmp_path)
    return tmp_path
