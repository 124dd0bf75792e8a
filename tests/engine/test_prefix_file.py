"""A prefix survives in a file, and a file that does not fit says why."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from mlxgen.engine.kv import KV
from mlxgen.engine.prefix_cache import PrefixCache
from mlxgen.engine.prefix_file import digest
from mlxgen.errors import LoadError, OptionError, StateError
from tests.fakes.architectures import VOCAB, cache_kinds, random_model
from tests.fakes.filled_caches import check, holding, mixed_layers, plain_layers, state_layers

PLENTY = 1 << 40
IDS = tuple(range(12))


def saved(path: Path, make: Callable[[], list[Any]] = plain_layers, model: Any = None) -> Path:
    cache = PrefixCache(make, PLENTY, model=model)
    cache.insert(IDS, holding(make, IDS))
    assert cache.save(path, IDS) == len(IDS)
    return path


def refused(path: Path, make: Callable[[], list[Any]] = plain_layers, model: Any = None) -> str:
    """The message of the error that loading a file ends in; nothing else happens."""
    cache = PrefixCache(make, PLENTY, model=model)
    with pytest.raises(LoadError) as caught:
        cache.load(path)
    cache.check_integrity()
    assert cache.nbytes == 0
    assert str(path) in str(caught.value)
    return str(caught.value).replace(str(path), "")  # the path has the test's name in it


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The file with another header; ``change`` gets it as JSON and may return another one."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    changed = json.dumps(change(header) or header).encode()
    path.write_bytes(struct.pack("<Q", len(changed)) + changed + data[8 + length :])
    return path


@pytest.mark.parametrize("name", cache_kinds())
def test_a_prefix_of_every_cache_type_comes_back_from_a_file(name: str, tmp_path: Path) -> None:
    model, make = cache_kinds()[name]()
    history = [int(t) for t in np.random.default_rng(3).integers(0, VOCAB, 30)]
    kv, probe = KV(make), mx.array([[1, 2, 3]])
    for piece in (history[:20], history[20:]):
        kv.forward(model, mx.array([piece]))
        mx.eval(kv.arrays())
    cache = PrefixCache(make, PLENTY, model=model)
    cache.insert(history, kv)
    assert cache.save(tmp_path / "prefix.safetensors", history) == 30
    other = PrefixCache(make, PLENTY, model=model)
    assert other.load(tmp_path / "prefix.safetensors") == 30
    other.check_integrity()
    assert other.nbytes == cache.nbytes
    taken = other.take([*history, 1, 2, 3])
    assert taken is not None and taken.length == 30
    np.testing.assert_allclose(
        np.array(taken.forward(model, probe)), np.array(kv.forward(model, probe)), atol=2e-3
    )
    assert [path.name for path in tmp_path.iterdir()] == ["prefix.safetensors"]


def test_saving_takes_what_is_held_of_the_tokens_and_says_how_much(tmp_path: Path) -> None:
    cache = PrefixCache(plain_layers, PLENTY, block=5)
    cache.insert(IDS, holding(plain_layers, IDS))
    assert cache.save(tmp_path / "part", (*IDS[:7], 90, 91)) == 7
    other = PrefixCache(plain_layers, PLENTY)
    other.insert(IDS[:3], holding(plain_layers, IDS[:3]))
    assert other.load(str(tmp_path / "part")) == 7
    kv = other.take((*IDS[:7], 5))
    assert kv is not None
    check(kv.caches, IDS[:7])
    other.check_integrity()
    assert other.nbytes == 7 * 16


def test_what_is_not_held_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="2 tokens"):
        PrefixCache(plain_layers, PLENTY).save(tmp_path / "none", (1, 2))
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_written_is_named_and_an_old_file_stays(tmp_path: Path) -> None:
    cache = PrefixCache(plain_layers, PLENTY)
    cache.insert(IDS, holding(plain_layers, IDS))
    (tmp_path / "folder").mkdir()
    saved(tmp_path / "file")
    for name in ("no/folder", "file/below", "folder"):
        with pytest.raises(OptionError, match=name):
            cache.save(tmp_path / name, IDS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "none.safetensors")
    assert "cannot be read" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x02\0\0\0\0\0\0\0[]", b"a" * 5000])
def test_a_file_that_is_not_safetensors_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    assert "not safetensors" in refused(path)


def test_safetensors_of_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    mx.save_safetensors(str(path), {"weight": mx.zeros((3,))})
    assert "no saved prefix" in refused(path)


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    data = saved(tmp_path / "whole").read_bytes()
    for size in (1, 7, 8, 100, len(data) // 2, len(data) - 1):
        (tmp_path / "cut").write_bytes(data[:size])
        assert "truncated" in refused(tmp_path / "cut")


def test_a_file_of_other_layers_names_the_first_that_differs(tmp_path: Path) -> None:
    path = saved(tmp_path / "plain")
    assert "2 caches, but this model has 4" in refused(path, mixed_layers)
    quantised = refused(path, lambda: [KVCache(), QuantizedKVCache(32, 8)])
    assert "cache 1" in quantised and "bits=8" in quantised
    path = saved(tmp_path / "window", lambda: [RotatingKVCache(max_size=20)])
    assert "max_size=20" in refused(path, lambda: [RotatingKVCache(max_size=24)])


def test_a_file_of_other_weights_is_refused_and_one_of_the_same_weights_is_not(
    tmp_path: Path,
) -> None:
    path = saved(tmp_path / "one", model=random_model("llama", seed=1))
    assert "other weights" in refused(path, model=random_model("llama", seed=2))
    assert PrefixCache(plain_layers, PLENTY, model=random_model("llama", seed=1)).load(path) == 12
    assert PrefixCache(plain_layers, PLENTY).load(path) == 12
    assert PrefixCache(plain_layers, PLENTY, model=object()).load(path) == 12


def test_a_model_without_weights_has_no_digest_and_all_types_of_weights_count() -> None:
    assert digest(None) == ""
    model = random_model("llama")
    names = {digest(model)}
    for dtype in (mx.bfloat16, mx.float16):
        model.set_dtype(dtype)
        names.add(digest(model))
    model.lm_head.weight = model.lm_head.weight + 1
    names.add(digest(model))
    assert len(names) == 4


def test_keys_of_another_width_or_type_than_those_held_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "narrow")
    cache = PrefixCache(plain_layers, PLENTY)
    caches = plain_layers()
    for leaf in (caches[0], caches[1].caches[0]):
        leaf.update_and_fetch(mx.zeros((1, 1, 2, 4)), mx.zeros((1, 1, 2, 4)))
    cache.insert((1, 2), KV.holding(plain_layers, caches, 2))
    with pytest.raises(LoadError, match=r"cache 0 holds float32\[1, 1, 1\]"):
        cache.load(path)
    assert cache.nbytes == 2 * 2 * 2 * 16


def test_a_file_larger_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "large")
    cache = PrefixCache(plain_layers, 12 * 16 - 1)
    with pytest.raises(LoadError, match=r"192 bytes of KV.* 191 in all"):
        cache.load(path)


def _without_state(header: dict[str, Any]) -> None:
    del header["__metadata__"]["state"]


def _other_state(header: dict[str, Any]) -> None:
    header["__metadata__"]["state"] = json.dumps([{"offset": 12}, {"offset": 12}])


def _unknown_array(header: dict[str, Any]) -> None:
    state = header["__metadata__"]["state"]
    header["__metadata__"]["state"] = state.replace("0.keys", "9.keys")


def _fewer_tokens(header: dict[str, Any]) -> None:
    header["__metadata__"]["tokens"] = "[1, 2, 3]"


def _fewer_of_all(header: dict[str, Any]) -> None:
    _fewer_tokens(header)
    state = header["__metadata__"]["state"]
    header["__metadata__"]["state"] = state.replace('"offset": 12', '"offset": 3')


def _other_offset(header: dict[str, Any]) -> None:
    state = header["__metadata__"]["state"]
    header["__metadata__"]["state"] = state.replace('"offset": 12', '"offset": 11')


def _no_tokens(header: dict[str, Any]) -> None:
    header["__metadata__"]["tokens"] = "[]"


def _huge_token(header: dict[str, Any]) -> None:
    header["__metadata__"]["tokens"] = json.dumps([1 << 40, *IDS[1:]])


def _no_json(header: dict[str, Any]) -> None:
    header["__metadata__"]["layers"] = "{"


def _larger_shape(header: dict[str, Any]) -> None:
    header["0.keys"]["shape"] = [1, 1, 12, 1000]


def _negative_place(header: dict[str, Any]) -> None:
    header["0.keys"]["data_offsets"] = [-48, 0]


def _no_place(header: dict[str, Any]) -> None:
    del header["0.keys"]["data_offsets"]


@pytest.mark.parametrize(
    "change",
    [
        _without_state,
        _other_state,
        _unknown_array,
        _fewer_tokens,
        _fewer_of_all,
        _other_offset,
        _no_tokens,
        _huge_token,
        _no_json,
        _larger_shape,
        _negative_place,
        _no_place,
    ],
)
def test_a_broken_header_is_refused(
    change: Callable[[dict[str, Any]], Any], tmp_path: Path
) -> None:
    assert "broken" in refused(rewritten(saved(tmp_path / "file"), change))


def test_states_and_windows_come_back_too(tmp_path: Path) -> None:
    for make in (state_layers, mixed_layers):
        path = saved(tmp_path / "prefix", make)
        cache = PrefixCache(make, PLENTY)
        assert cache.load(path) == 12
        kv = cache.take((*IDS, 5))
        assert kv is not None
        check(kv.caches, IDS)
