"""A model on disk or on the hub, and what may have happened to its files."""

from __future__ import annotations

import codecs
import json
import shutil
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import mlx.core as mx
import pytest
from huggingface_hub import errors

from mlxgen.loading import hub

from ..fakes.checkpoints import write_checkpoint


@pytest.fixture(scope="package")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A model that the test may break."""
    return Path(shutil.copytree(pristine, tmp_path / "tiny-llama"))


# ---- changed files ----


def change(folder: Path, verb: str, what: Any) -> None:
    """Does one thing to a file; bytes are written as the characters of these numbers."""
    name, *more = [what] if isinstance(what, str) else what
    file = folder / name
    if verb == "config":
        config = json.loads((folder / "config.json").read_text()) | what
        kept = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))
    elif verb == "nest":
        text = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"
        head = struct.pack("<Q", len(text)) if name.endswith(".safetensors") else b""
        file.write_bytes(head + text.encode())
    elif verb == "mark":
        for each in folder.glob(what):
            each.write_bytes(codecs.BOM_UTF8 + each.read_bytes())
    elif verb == "remove":
        file.unlink()
    elif verb == "rename":
        file.rename(folder / more[0])
    elif verb == "folder":
        file.mkdir()
    elif verb == "link":
        file.symlink_to(more[0])
    elif verb == "write":
        file.write_bytes(more[0].encode("latin-1"))
    elif verb == "cut":
        file.write_bytes(file.read_bytes()[: -int(more[0])])
    else:  # a tensor is added, or all with such an end are lost
        loaded = mx.load(str(file))
        assert isinstance(loaded, dict)
        kept = {k: v + 0 for k, v in loaded.items() if verb == "add" or not k.endswith(more[0])}
        extra = {more[0]: mx.zeros((2, 2))} if verb == "add" else {}
        mx.save_safetensors(str(file), kept | extra)


# ---- the hub ----


def hub_answers(
    monkeypatch: pytest.MonkeyPatch, error: str | None = None, fetched: Path | None = None
) -> list[dict[str, Any]]:
    """The hub knows every model, or answers every question with ``error``; returns what is to be
    ``fetched`` from it, and fails if nothing may be."""
    asked: list[dict[str, Any]] = []

    def model_info(self: object, repo: str, **options: Any) -> None:
        if error is not None:
            raise hub_error(error)

    def snapshot_download(repo: str, **options: Any) -> str:
        assert fetched is not None, "nothing is to be fetched"
        asked.append({"repo": repo, **options})
        return str(fetched)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    if error is None:
        monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    return asked


def hub_error(name: str) -> Exception:
    if name == "ConnectionError":
        return ConnectionError("no route")
    answer: Any = SimpleNamespace(headers={}, request=None)
    how = {} if name == "OfflineModeIsEnabled" else {"response": answer}
    error: Exception = getattr(errors, name)("no", **how)
    return error
