"""Of a long run, the logits that nobody wants are not computed."""

from __future__ import annotations

import io

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxgen.engine.kv import KV
from mlxgen.engine.kv.alone import Alone
from mlxgen.engine.kv.layers import arrays_in
from mlxgen.engine.step.runner import SHORT, Runner, last_rows
from tests.fakes.architectures import VOCAB, cache_kinds


@pytest.mark.parametrize("wanted", [1, 3])
@pytest.mark.parametrize("length", [SHORT, SHORT + 1, 200])
def test_the_head_is_once_in_the_graph_of_a_run(length: int, wanted: int) -> None:
    model, make = cache_kinds()["plain"]()
    nn.quantize(model, 32, 8, class_predicate=lambda path, _: path == "lm_head")
    tokens = [i % VOCAB for i in range(length)]
    kv = KV(Runner(model, make))
    logits = kv.run(tokens, wanted)
    graph = io.StringIO()
    mx.export_to_dot(graph, logits)
    assert graph.getvalue().count("QuantizedMatmul") == 1
    assert logits.shape == (wanted, VOCAB) and kv.length == length
    whole = model(mx.array([tokens]), cache=make())[0, -wanted:]
    np.testing.assert_allclose(np.array(logits), np.array(whole), rtol=2e-3, atol=2e-3)


def test_what_is_held_of_a_prompt_has_no_logits_in_its_graph() -> None:
    model, make = cache_kinds()["plain"]()
    nn.quantize(model, 32, 8, class_predicate=lambda path, _: path == "lm_head")
    kv = KV(Runner(model, make))
    kv.run(list(range(20)), wanted=0)
    graph = io.StringIO()
    assert isinstance(kv.store, Alone)
    mx.export_to_dot(graph, *arrays_in(kv.store.arrays()))
    assert "QuantizedMatmul" not in graph.getvalue()


def test_of_rows_that_are_padded_at_their_ends_the_last_ones_are_taken() -> None:
    logits = mx.arange(10).reshape(2, 5, 1)
    assert last_rows(logits, [5, 3], [2, 1]).tolist() == [[3], [4], [7]]
    assert last_rows(logits, [5, 5], [1, 1]).tolist() == [[4], [9]]
    assert last_rows(logits, [0, 5], [0, 3]).tolist() == [[7], [8], [9]]
