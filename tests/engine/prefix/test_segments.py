"""What is kept of each layer is all that a later token can see, and nothing else."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from mlxgen.engine.kv.alone import Alone
from mlxgen.engine.kv.layers import owned
from mlxgen.engine.prefix.store import BlockStore
from tests.fakes.filled_caches import check, fill, holding, plain_layers

PLENTY = 1 << 40


def test_a_copy_never_shares_the_buffer_of_what_it_was_copied_from() -> None:
    whole = mx.ones((1, 1, 4096, 8)) * 2
    mx.eval(whole)
    for array in (whole, whole[:, :, :4095], whole[:, :, 5:]):
        before = mx.get_active_memory()
        copy = owned(array)
        mx.eval(copy)
        assert mx.get_active_memory() - before >= copy.nbytes
        assert mx.array_equal(copy, array)
        del copy
    assert owned(mx.array(3)).item() == 3


@pytest.mark.parametrize("layer", [RotatingKVCache, ChunkedKVCache])
@pytest.mark.parametrize("count", [3, 16, 17, 200])
def test_a_window_is_kept_without_the_keys_that_no_later_token_sees(
    layer: type[Any], count: int
) -> None:
    def make() -> list[Any]:
        return [layer(16)]

    cache, ids = BlockStore(make, PLENTY), tuple(range(count))
    cache.keep(ids, holding(make, ids))  # one prefill
    assert cache.nbytes == min(count, 16) * 8
    kv = cache.take((*ids, 5))
    assert kv is not None and kv.caches[0].offset == count
    assert kv.caches[0].keys_and_values()[0][0, 0, :, 0].tolist() == list(ids[-16:])


def test_a_layer_that_the_model_never_fills_stays_empty() -> None:
    def make() -> list[Any]:
        return [KVCache(), CacheList(KVCache(), KVCache())]

    cache, ids = BlockStore(make, PLENTY), (1, 2, 3)
    caches = make()
    fill([caches[0], caches[1].caches[0]], ids)
    cache.keep(ids, Alone(make, caches, len(ids)))
    kv = cache.take((*ids, 4))
    assert kv is not None
    check([kv.caches[0], kv.caches[1].caches[0]], ids)
    assert kv.caches[1].caches[1].empty()


def test_layers_that_skip_tokens_are_not_kept() -> None:
    caches = plain_layers()
    fill(caches[:1], (1, 2, 3))
    fill(caches[1:], (1, 2))
    cache = BlockStore(plain_layers, PLENTY)
    cache.keep((1, 2, 3), Alone(plain_layers, caches, 3))
    assert cache.nbytes == 0
