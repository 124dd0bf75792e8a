"""Which model a folder holds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mlxgen.loading.safetensors import fingerprint

MODEL = Path(__file__).parents[2] / "mlxgen" / "demo" / "model"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "elsewhere"))


def test_a_copy_is_the_same_model_whenever_it_was_made(folder: Path) -> None:
    os.utime(folder / "config.json", (0, 0))
    assert fingerprint(folder) == fingerprint(MODEL)
    assert {"config.json", "model.safetensors"} <= fingerprint(folder).keys()


def test_a_tokenizer_makes_no_other_model(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{}")
    assert fingerprint(folder) == fingerprint(MODEL)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_changed_is_another(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    for place in range(len(data) // 2, len(data), 100):  # the size and the header stay
        data[place] ^= 1
    (folder / name).write_bytes(data)
    changed = {
        key for key, value in fingerprint(folder).items() if value != fingerprint(MODEL)[key]
    }
    assert changed == {name}


def test_code_of_the_model_counts(folder: Path) -> None:
    (folder / "model.py").write_text("a = 1")
    assert fingerprint(folder).keys() - fingerprint(MODEL).keys() == {"model.py"}
