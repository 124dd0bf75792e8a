"""A model on disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ..fakes.checkpoints import write_checkpoint


@pytest.fixture(scope="package")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A model that the test may break."""
    return Path(shutil.copytree(pristine, tmp_path / "tiny-llama"))
