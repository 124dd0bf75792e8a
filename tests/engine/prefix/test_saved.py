"""A prefix survives in a file, and a file that does not fit says why."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_lm.tuner.lora import LoRALinear

from mlxgen.engine.kv.slot_caches import Keys, Quantisation
from mlxgen.engine.prefix import block_file
from mlxgen.engine.prefix.block_file import digest
from mlxgen.engine.prefix.store import BlockStore
from mlxgen.errors import LoadError, OptionError, StateError
from tests.fakes.architectures import VOCAB, cache_kinds, random_model
from tests.fakes.filled_caches import Make, check, holding, mixed_layers, plain_layers, row, taken
from tests.fakes.prefix_integrity import check_integrity
from tests.fakes.speaking import PROMPT, reciter

from .kit import PLENTY, gives, store_in, write

IDS = tuple(range(12))


def saved(path: Path, make: Make = plain_layers, model: Any = None) -> Path:
    cache = BlockStore(make, PLENTY, model=model)
    cache.keep(IDS, holding(make, IDS))
    assert cache.save(path, IDS) == len(IDS)
    return path


def refused(path: Path, make: Make = plain_layers, model: Any = None) -> str:
    """The message of the error that loading a file ends in; nothing else happens."""
    cache = BlockStore(make, PLENTY, model=model)
    with pytest.raises(LoadError) as caught:
        cache.load(path)
    check_integrity(cache)
    assert cache.nbytes == 0 and str(path) in str(caught.value)
    return str(caught.value).replace(str(path), "")  # the path has the test's name in it


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The file with another header, and a checksum that fits it: as somebody else may make one."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["about"] = json.loads(header["__metadata__"]["about"])
    change(header)
    header["__metadata__"]["about"] = json.dumps(header.pop("about", None))
    for _ in range(2):  # the second time with the checksum of what the first one is
        changed = json.dumps(header, separators=(",", ":")).encode()
        path.write_bytes(struct.pack("<Q", len(changed)) + changed + data[8 + length :])
        with contextlib.suppress(Exception):  # it is not even a file of that kind
            found: Any = mx.load(str(path), format="safetensors", return_metadata=True)
            arrays, about = found
            del about["checksum"]
            header["__metadata__"]["checksum"] = block_file._checksum(about, arrays)
    return path


# ---- what comes back ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", cache_kinds())
def test_a_prefix_of_every_cache_type_comes_back_from_a_file(name: str, tmp_path: Path) -> None:
    model, make = cache_kinds()[name]()
    history = [int(t) for t in np.random.default_rng(3).integers(0, VOCAB, 30)]
    kv, probe, path = row(make), mx.array([[1, 2, 3]]), tmp_path / "prefix.safetensors"
    for piece in (history[:20], history[20:]):
        kv.forward(model, mx.array([piece]))
        mx.eval(kv.arrays())
    cache, other = (BlockStore(make, PLENTY, model=model) for _ in range(2))
    cache.keep(history, kv)
    assert cache.save(path, history) == other.load(path) == 30
    check_integrity(other)
    assert other.nbytes == cache.nbytes
    again = taken(other, [*history, 1, 2, 3])
    assert again is not None and again.length == 30
    one, same = (np.array(each.forward(model, probe)) for each in (again, kv))
    np.testing.assert_allclose(one, same, atol=2e-3)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_saving_takes_what_is_held_of_the_tokens_and_says_how_much(tmp_path: Path) -> None:
    cache, other = BlockStore(plain_layers, PLENTY), BlockStore(plain_layers, PLENTY)
    with pytest.raises(StateError, match="2 tokens"):
        cache.save(tmp_path / "none", (1, 2))
    assert not list(tmp_path.iterdir())
    cache.keep(IDS, holding(plain_layers, IDS))
    assert cache.save(tmp_path / "part", (*IDS[:7], 90, 91)) == 7
    other.keep(IDS[:3], holding(plain_layers, IDS[:3]))
    assert other.load(str(tmp_path / "part")) == 7
    kv = taken(other, (*IDS[:7], 5))
    assert kv is not None and other.nbytes == 7 * 16
    check(kv, IDS[:7])


# ---- paths -------------------------------------------------------------------------------------


def test_a_path_that_cannot_be_written_or_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, old = BlockStore(plain_layers, PLENTY), saved(tmp_path / "file").read_bytes()
    cache.keep(IDS, holding(plain_layers, IDS))
    (tmp_path / "folder").mkdir()
    for name in ("no/folder", "file/below", "folder", "nothing\0more", "x" * 5000):
        with pytest.raises(OptionError) as caught:
            cache.save(str(tmp_path / name), IDS)
        assert caught.value.field == "path" and name in str(caught.value)
        assert "cannot be read" in refused(tmp_path / name)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OptionError, match="No space left"):
        cache.save(tmp_path / "file", IDS)
    assert (tmp_path / "file").read_bytes() == old
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("path", ["", ".", "..", "/", None, 5, b"file"])
def test_what_can_be_no_file_is_an_option_error_before_anything_runs(path: Any) -> None:
    speaker, cache = reciter(["a"]), BlockStore(plain_layers, PLENTY)
    for use in (cache.load, lambda path: speaker.lm.save_prefix(PROMPT, path)):
        with pytest.raises(OptionError) as caught:
            use(path)
        assert caught.value.field == "path"
    assert speaker.model.passes == 0


# ---- files that are not what was saved ---------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"hello", b"\x02\0\0\0\0\0\0\0[]", b"a" * 5000])
def test_a_file_that_is_not_a_saved_prefix_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    assert "safetensors" in refused(path)
    mx.save_safetensors(str(path) + ".safetensors", {"weight": mx.zeros((3,))})
    assert "a saved prefix" in refused(path.with_suffix(".safetensors"))


@pytest.mark.parametrize("make", [plain_layers, mixed_layers])
def test_a_block_is_not_taken_for_a_saved_prefix_nor_a_prefix_for_a_block(
    make: Make, tmp_path: Path
) -> None:
    store, ids = store_in(tmp_path / "kv", make), tuple(range(300))
    write(store, make, ids)
    files = sorted((tmp_path / "kv").iterdir(), key=lambda file: int(file.name.split(".")[2]))
    for file in files:
        assert "part of a prefix" in refused(file, make)
    cache = BlockStore(make, PLENTY)
    cache.keep(ids, holding(make, ids))
    cache.save(files[-1], ids)
    assert gives(store, ids) == (256 if make is plain_layers else 0)


def test_a_file_of_another_model_is_refused_and_one_of_the_same_is_not(tmp_path: Path) -> None:
    make: Make = lambda: [KVCache(), KVCache()]  # noqa: E731
    path = saved(tmp_path / "one", make, random_model("llama", seed=1))
    assert BlockStore(make, PLENTY, model=random_model("llama", seed=1)).load(path) == 12
    other = random_model("llama", seed=1)
    other.args.rope_theta *= 2
    for different in (random_model("llama", seed=2), other, None):
        assert "another model, other weights" in refused(path, make, different)
    path = saved(tmp_path / "window", lambda: [RotatingKVCache(max_size=20)])
    packed = lambda: [Keys(how=Quantisation(8, 32, 7))]  # noqa: E731
    for layers in (
        mixed_layers,
        lambda: [RotatingKVCache(max_size=24)],
        lambda: [KVCache()],
        packed,
    ):
        assert "options of its KV cache" in refused(path, layers)


def test_whatever_makes_two_models_of_one_is_in_their_digests() -> None:
    assert digest(None) == ""
    model = random_model("llama")
    digests = [digest(model)]
    for dtype in (mx.bfloat16, mx.float16):
        model.set_dtype(dtype)
        digests.append(digest(model))
    model.lm_head.weight = model.lm_head.weight + 1
    digests.append(digest(model))
    for scale in (10.0, 20.0):  # adapters that differ in nothing else
        model = random_model("llama")
        mx.random.seed(1)
        model.lm_head = LoRALinear.from_base(model.lm_head, scale=scale)
        digests.append(digest(model))
    assert len(set(digests)) == len(digests)


def test_a_file_larger_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "large")
    cache = BlockStore(plain_layers, 12 * 16 - 1)
    with pytest.raises(LoadError, match=r"192 bytes of KV.* 191 in all"):
        cache.load(path)


BROKEN: list[tuple[str, str, Any]] = [
    ("about", "layers", None),
    ("about", "layers", [2]),
    ("about", "layers", [2, 3]),
    ("about", "values", {}),
    ("values", "state.0.offset", 11),
    ("values", "state.0.max_size", 6),
    ("about", "tokens", [1, 2, 3]),
    ("about", "tokens", []),
    ("about", "tokens", [1 << 40, *IDS[1:]]),
    ("about", "start", -1),
    ("about", "model", "[" * 100_000),
    ("layer.0.0", "shape", [1, 1, 12, 1000]),
    ("layer.0.0", "data_offsets", [-48, 0]),
    ("layer.0.0", "data_offsets", None),
]
"""What stands somewhere in a header of the file in place of something else."""


def test_a_broken_header_is_refused(tmp_path: Path) -> None:
    for where, key, value in BROKEN:

        def change(
            header: dict[str, Any], where: str = where, key: str = key, value: Any = value
        ) -> None:
            part = header["about"]["values"] if where == "values" else header[where]
            assert key in part
            part[key] = value
            if value is None:
                del part[key]

        path = rewritten(saved(tmp_path / "file", mixed_layers), change)
        assert refused(path, mixed_layers), (where, key, value)
