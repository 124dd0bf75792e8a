"""The models on this machine, as a person lists, gets and removes them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mlxgen
from mlxgen.loading.memory import context_left
from mlxgen.loading.model_config import kv_bytes_of
from mlxgen.models import Model, fits

from .fakes.checkpoints import write_checkpoint

QWEN = {
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of huggingface-hub with one model, and one that has no weights for MLX."""
    for name, digit in (("acme/tiny", "0"), ("acme/torch", "1")):
        commit = 40 * digit
        folder = tmp_path / f"models--{name.replace('/', '--')}"
        write_checkpoint(folder / "snapshots" / commit)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit / "model.safetensors").unlink()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlxgen.models", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_list_says_what_fits_and_a_model_that_is_removed_is_gone(hub: Path) -> None:
    head, *rows = run().stdout.splitlines()
    assert re.match(r"MODEL +SIZE +LAST USED +ON THIS MACHINE \([\d.]+ GB\)$", head)
    told = {row.split()[0]: row for row in rows}
    assert told["acme/tiny"].endswith("fits, with its whole context of 4,096 tokens")
    assert told["acme/torch"].endswith("no weights for MLX; get it again")
    assert run("list").stdout.splitlines()[0] == head
    got = run("get", "acme/tiny")
    assert got.stdout.startswith(f"acme/tiny is in {hub}") and "(fits, with" in got.stdout
    gone = run("rm", "acme/tiny")
    assert gone.stdout.startswith("deleted acme/tiny, which frees 0.00 GB")
    assert not (hub / "models--acme--tiny").exists()
    assert "acme/tiny" not in run().stdout
    for command in ("rm", "get"):
        missing = run(command, "acme/tiny")
        assert missing.returncode == 2
        assert missing.stderr.startswith("mlxgen.models: error: acme/tiny is not ")


def test_without_any_model_a_first_one_is_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "nothing"))
    assert run().stdout.startswith("no models yet; try: mlxgen.models get ")


def test_the_estimate_is_what_a_loaded_model_needs(tmp_path: Path) -> None:
    lm = mlxgen.load(write_checkpoint(tmp_path / "tiny"))
    assert kv_bytes_of(lm.config, bytes_each=4) == lm.runtime.footprint.growing
    assert kv_bytes_of(QWEN) == 2 * 36 * 8 * 128 * 2 == 147_456
    latent = {"num_hidden_layers": 27, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert kv_bytes_of(latent) == 27 * 576 * 2
    half = QWEN | {"layer_types": ["full_attention", "sliding_attention"] * 18}
    assert kv_bytes_of({"text_config": half}) == 147_456 // 2
    assert kv_bytes_of({}) is None


def test_memory_decides_between_too_large_some_context_and_all_of_it() -> None:
    def told(gigabytes: float, config: dict[str, int] = QWEN) -> str:
        return fits(Model("a", 0, 0, int(2.3e9), config), int(gigabytes * 1e9))

    assert told(2) == "too large"
    assert told(2.6) == "fits, but leaves no room for a context"
    assert re.fullmatch(r"fits, with a context of about \d\d,\d{3} tokens", told(8))
    assert told(64) == "fits, with its whole context of 40,960 tokens"
    short = QWEN | {"max_position_embeddings": 512}
    assert told(2.67, short) == "fits, with its whole context of 512 tokens"
    assert told(64, {}) == "fits"
    assert context_left(10, 1, 8) <= 0
