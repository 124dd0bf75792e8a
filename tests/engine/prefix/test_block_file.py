"""A prefix survives in a file, and a file that does not fit says why."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_lm.tuner.lora import LoRALinear

from mlxgen.engine.kv.alone import Alone
from mlxgen.engine.kv.quantised import Quantisation, QuantisedKeys
from mlxgen.engine.prefix import block_file
from mlxgen.engine.prefix.block_file import digest
from mlxgen.engine.prefix.store import BlockStore
from mlxgen.errors import LoadError, OptionError, StateError
from tests.fakes.architectures import VOCAB, cache_kinds, random_model
from tests.fakes.filled_caches import check, holding, mixed_layers, plain_layers
from tests.fakes.prefix_integrity import check_integrity
from tests.fakes.speaking import PROMPT, reciter

from .folders import PLENTY, bits

IDS = tuple(range(12))


def saved(path: Path, make: Callable[[], list[Any]] = plain_layers, model: Any = None) -> Path:
    cache = BlockStore(make, PLENTY, model=model)
    cache.keep(IDS, holding(make, IDS))
    assert cache.save(path, IDS) == len(IDS)
    return path


def refused(path: Path, make: Callable[[], list[Any]] = plain_layers, model: Any = None) -> str:
    """The message of the error that loading a file ends in; nothing else happens."""
    cache = BlockStore(make, PLENTY, model=model)
    with pytest.raises(LoadError) as caught:
        cache.load(path)
    check_integrity(cache)
    assert cache.nbytes == 0
    assert str(path) in str(caught.value)
    return str(caught.value).replace(str(path), "")  # the path has the test's name in it


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The file with another header, and a checksum that fits it: as somebody else may make one."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    for _ in range(2):  # the second time with the checksum of what the first one is
        changed = json.dumps(header, separators=(",", ":")).encode()
        path.write_bytes(struct.pack("<Q", len(changed)) + changed + data[8 + length :])
        with contextlib.suppress(Exception):  # it is not even a file of that kind
            found: Any = mx.load(str(path), format="safetensors", return_metadata=True)
            arrays, about = found
            del about["checksum"]
            header["__metadata__"]["checksum"] = block_file._checksum(about, arrays)
    return path


def llama(seed: int = 0) -> tuple[Any, Callable[[], list[Any]]]:
    model = random_model("llama", seed=seed)
    return model, lambda: [KVCache() for _ in model.layers]


def run(path: Path, model: Any, make: Callable[[], list[Any]]) -> Path:
    """A prefix that a model has run, in a file."""
    kv = Alone(make)
    kv.forward(model, mx.array([IDS]))
    cache = BlockStore(make, PLENTY, model=model)
    cache.keep(IDS, kv)
    assert cache.save(path, IDS) == len(IDS)
    return path


@pytest.mark.parametrize("name", cache_kinds())
def test_a_prefix_of_every_cache_type_comes_back_from_a_file(name: str, tmp_path: Path) -> None:
    model, make = cache_kinds()[name]()
    history = [int(t) for t in np.random.default_rng(3).integers(0, VOCAB, 30)]
    kv, probe = Alone(make), mx.array([[1, 2, 3]])
    for piece in (history[:20], history[20:]):
        kv.forward(model, mx.array([piece]))
        mx.eval(kv.arrays())
    cache = BlockStore(make, PLENTY, model=model)
    cache.keep(history, kv)
    assert cache.save(tmp_path / "prefix.safetensors", history) == 30
    other = BlockStore(make, PLENTY, model=model)
    assert other.load(tmp_path / "prefix.safetensors") == 30
    check_integrity(other)
    assert other.nbytes == cache.nbytes
    taken = other.take([*history, 1, 2, 3])
    assert taken is not None and taken.length == 30
    np.testing.assert_allclose(
        np.array(taken.forward(model, probe)), np.array(kv.forward(model, probe)), atol=2e-3
    )
    assert [path.name for path in tmp_path.iterdir()] == ["prefix.safetensors"]


def test_saving_takes_what_is_held_of_the_tokens_and_says_how_much(tmp_path: Path) -> None:
    cache = BlockStore(plain_layers, PLENTY)
    cache.keep(IDS, holding(plain_layers, IDS))
    assert cache.save(tmp_path / "part", (*IDS[:7], 90, 91)) == 7
    other = BlockStore(plain_layers, PLENTY)
    other.keep(IDS[:3], holding(plain_layers, IDS[:3]))
    assert other.load(str(tmp_path / "part")) == 7
    kv = other.take((*IDS[:7], 5))
    assert kv is not None
    check(kv.caches, IDS[:7])
    check_integrity(other)
    assert other.nbytes == 7 * 16


def test_what_is_not_held_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="2 tokens"):
        BlockStore(plain_layers, PLENTY).save(tmp_path / "none", (1, 2))
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_written_is_named_and_an_old_file_stays(tmp_path: Path) -> None:
    cache = BlockStore(plain_layers, PLENTY)
    cache.keep(IDS, holding(plain_layers, IDS))
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
    assert re.search("not( a)? safetensors", refused(path))


def test_safetensors_of_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    mx.save_safetensors(str(path), {"weight": mx.zeros((3,))})
    assert "a saved prefix" in refused(path)


def test_a_file_of_other_layers_names_the_first_that_differs(tmp_path: Path) -> None:
    path = saved(tmp_path / "plain")
    assert "2 caches, but this model has 4" in refused(path, mixed_layers)
    quantised = refused(path, lambda: [KVCache(), QuantisedKeys(Quantisation(8, 32, 7))])
    assert "cache 1" in quantised and "bits=8, group_size=32, start=7" in quantised
    path = saved(tmp_path / "window", lambda: [RotatingKVCache(max_size=20)])
    assert "max_size=20" in refused(path, lambda: [RotatingKVCache(max_size=24)])


def test_a_file_of_other_weights_is_refused_and_one_of_the_same_weights_is_not(
    tmp_path: Path,
) -> None:
    (model, make), (other, _) = llama(1), llama(2)
    path = run(tmp_path / "one", model, make)
    assert "other weights" in refused(path, make, other)
    assert BlockStore(make, PLENTY, model=llama(1)[0]).load(path) == 12
    assert BlockStore(make, PLENTY).load(path) == 12
    assert BlockStore(make, PLENTY, model=object()).load(path) == 12


def test_a_file_of_the_same_weights_in_another_configuration_is_refused(tmp_path: Path) -> None:
    model, make = llama()
    path = run(tmp_path / "one", model, make)
    other, _ = llama()
    other.args.rope_theta *= 2
    assert "another configuration" in refused(path, make, other)


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


def test_adapters_that_differ_in_their_scale_alone_make_two_models() -> None:
    names = set()
    for scale in (10.0, 20.0):
        model = random_model("llama")
        mx.random.seed(1)
        model.lm_head = LoRALinear.from_base(model.lm_head, scale=scale)
        names.add(digest(model))
    assert len(names) == 2


def test_a_file_larger_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "large")
    cache = BlockStore(plain_layers, 12 * 16 - 1)
    with pytest.raises(LoadError, match=r"192 bytes of KV.* 191 in all"):
        cache.load(path)


BROKEN: list[tuple[str, Any]] = [
    ("segment", None),
    ("segment", "[[], [], []]"),
    ("segment", ("segment.0.0", "segment.9.0")),
    ("snapshot", '[{"offset": 12}, {"offset": 12}]'),
    ("snapshot", "[]"),
    ("snapshot", ('"offset": 12', '"offset": 11')),
    ("tokens", "[1, 2, 3]"),
    ("tokens", "[]"),
    ("tokens", json.dumps([1 << 40, *IDS[1:]])),
    ("start", "-1"),
    ("layers", "{"),
    ("layers", "[" * 100_000 + "]" * 100_000),
    ("shape", [1, 1, 12, 1000]),
    ("data_offsets", [-48, 0]),
    ("data_offsets", None),
]
"""What stands in a header of the file, or of its first array, in place of something else."""


@pytest.mark.parametrize(("key", "value"), BROKEN, ids=lambda each: str(each)[:20])
def test_a_broken_header_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    def change(header: dict[str, Any]) -> None:
        part = header["__metadata__" if key in header["__metadata__"] else "segment.0.0"]
        if isinstance(value, tuple):
            part[key] = part[key].replace(*value)
        else:
            part[key] = value
        if value is None:
            del part[key]

    path = rewritten(saved(tmp_path / "file", mixed_layers), change)
    assert "broken" in refused(path, mixed_layers)


TYPES = (
    *(mx.bool_, mx.uint8, mx.int8, mx.uint16, mx.int16, mx.uint32, mx.int32, mx.uint64, mx.int64),
    *(mx.float16, mx.bfloat16, mx.float32, mx.complex64),
)


def test_arrays_of_every_type_and_of_no_size_come_back_to_the_bit(tmp_path: Path) -> None:
    arrays = {
        f"{kind} {shape}": mx.random.randint(0, 2, shape).astype(kind)
        for kind in TYPES
        for shape in ((), (3, 5), (1, 0, 4))
    }
    size = block_file.write_arrays(tmp_path / "file", {"about": "it"}, arrays)
    assert (tmp_path / "file").stat().st_size == size
    metadata, read = block_file.read_arrays(tmp_path / "file")
    assert metadata == {"about": "it"} and read.keys() == arrays.keys()
    for name, a in arrays.items():
        assert (a.dtype, a.shape, bits(a)) == ((b := read[name]).dtype, b.shape, bits(b))


def test_every_bit_that_flips_is_found_wherever_it_is(tmp_path: Path) -> None:
    path = saved(tmp_path / "file", mixed_layers)
    data = path.read_bytes()
    chance = random.Random(1)
    places = {*range(8 * 80), *(chance.randrange(8 * len(data)) for _ in range(700))}
    for place in places:
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        assert refused(path, mixed_layers), place


def test_every_beginning_of_a_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "file", mixed_layers)
    data = path.read_bytes()
    for size in range(0, len(data), 3):
        path.write_bytes(data[:size])
        assert "truncated" in refused(path, mixed_layers)


JSON = ("tokens", "start", "layers", "segment", "snapshot")
VALUES: list[Any] = [
    None,
    True,
    -1,
    1 << 70,
    0.5,
    "",
    "x",
    [],
    {},
    [[]],
    {"array": "segment.0.0"},
    "[" * 2000,
]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to everything in a JSON value."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(below, (*path, key))


def test_a_header_that_somebody_made_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path = saved(tmp_path / "file", mixed_layers)
    data, chance = path.read_bytes(), random.Random(2)

    def mutate(header: dict[str, Any]) -> None:
        about = header["__metadata__"]
        for key in JSON:
            about[key] = json.loads(about[key])
        way = chance.choice(list(_places(header)))
        inside: Any = header
        for step in way[:-1]:
            inside = inside[step]
        if chance.random() < 0.3:
            del inside[way[-1]]
        else:
            inside[way[-1]] = chance.choice(VALUES)
        about = header.get("__metadata__", {})
        if isinstance(about, dict):
            for key in JSON:
                if key in about:
                    about[key] = json.dumps(about[key])
        header["__metadata__"] = {"checksum": "", **(about if isinstance(about, dict) else {})}

    for _ in range(400):
        path.write_bytes(data)
        rewritten(path, mutate)
        cache = BlockStore(mixed_layers, PLENTY)
        cache.keep(IDS[:2], holding(mixed_layers, IDS[:2]))
        before = cache.nbytes
        with contextlib.suppress(LoadError):
            cache.load(path)
            kv = cache.take((*IDS, 5))
            assert kv is not None
        check_integrity(cache)
        assert cache.nbytes >= before


@pytest.mark.parametrize("path", ["", ".", "..", "/", None, 5, b"file"])
def test_what_can_be_no_file_is_an_option_error(path: Any) -> None:
    cache = BlockStore(plain_layers, PLENTY)
    with pytest.raises(OptionError, match="path: "):
        cache.save(path, IDS)
    with pytest.raises(OptionError, match="path: "):
        cache.load(path)


def test_a_path_that_no_system_takes_is_named_as_well() -> None:
    cache = BlockStore(plain_layers, PLENTY)
    cache.keep(IDS, holding(plain_layers, IDS))
    for path in ("nothing\0more", "x" * 5000):
        with pytest.raises(OptionError, match="cannot be written"):
            cache.save(path, IDS)
        with pytest.raises(LoadError, match="cannot be read"):
            cache.load(path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "file")
    old = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OptionError, match="No space left"):
        saved(path, mixed_layers)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_a_language_model_checks_the_path_before_it_runs_anything(tmp_path: Path) -> None:
    speaker = reciter(["a"])
    with pytest.raises(OptionError, match="path"):
        speaker.lm.save_prefix(PROMPT, "")
    assert speaker.model.passes == 0
    assert speaker.lm.save_prefix(PROMPT, tmp_path / "prefix") == len(PROMPT)
    other = reciter(["a"])
    assert other.lm.load_prefix(tmp_path / "prefix") == len(PROMPT)
