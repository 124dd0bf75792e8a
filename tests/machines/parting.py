"""What a rank computes with its part of a model, beside what the whole model computes.

``python -m tests.machines.parting FOLDER...`` prints a line for each model, as JSON. If there is an
adapter in the folder ``adapter`` of a model, the model has it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from mlxgen.engine.kv import batch_equals_alone
from mlxgen.engine.kv.footprint import Measures
from mlxgen.engine.kv.quantised import Quantisation
from mlxgen.engine.prefix.block_file import digest
from mlxgen.errors import AdapterError
from mlxgen.loading.adapter import adapted
from mlxgen.loading.checkpoint import Checkpoint
from mlxgen.loading.pair import load_pair
from mlxgen.loading.sharding import Group, Split

PROMPT = [5, 9, 3, 7, 2, 11, 4, 8, 6, 20, 30, 1, 40]


def loaded(folder: Path, group: Group | None) -> Any:
    adapter = folder / "adapter"
    return load_pair(
        Checkpoint.open(folder),
        adapter=adapter if adapter.exists() else None,
        trust_remote_code=False,
        group=group,
        reading=lambda arrays: arrays,
    )[0]


def greedy(model: Any) -> tuple[list[int], np.ndarray[Any, Any]]:
    """The next tokens after a prompt, and all logits on the way."""
    caches, given, logits = make_prompt_cache(model), PROMPT, list[mx.array]()
    for _ in range(8):
        logits.append(model(mx.array([given]), cache=caches)[0, -1])
        given = [int(mx.argmax(logits[-1]))]
    found = np.array(mx.stack(logits))
    return [int(row.argmax()) for row in found], found


def growing(model: Any) -> int:
    return Measures.of(model, lambda: list(make_prompt_cache(model)), {}).footprint.growing


def compared(folder: Path, group: Group) -> dict[str, Any]:
    whole = loaded(folder, None)
    tokens, logits = greedy(whole)
    needed, footprint = mx.get_active_memory(), growing(whole)
    del whole
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    part = loaded(folder, group)
    peak, held = mx.get_peak_memory() - before, mx.get_active_memory() - before
    same, others = greedy(part)

    def make() -> list[Any]:
        return list(make_prompt_cache(part))

    def runs_together(make: Callable[[], list[Any]]) -> bool:
        return batch_equals_alone(part, make)

    packed = Quantisation.of(part, make, 8, 32, 0, name=folder.name)
    try:
        adapted(part, folder)
    except AdapterError as error:
        refused = str(error)
    return {
        "name": folder.name,
        "split": str(Split.had(part)),
        "same": same == tokens,
        "off": float(np.abs(others - logits).max() / np.abs(logits).max()),
        "share": held / (needed - before),
        "peak": peak / (needed - before),
        "growing": growing(part) / footprint,
        "width": Measures.of(part, make, {}).vocab_size == logits.shape[1],
        "together": runs_together(make),
        "together quantised": runs_together(lambda: packed.applied(make())),
        "digest": digest(part),
        "refused": refused,
    }


if __name__ == "__main__":
    ring = mx.distributed.init()
    for name in sys.argv[1:]:
        print(json.dumps(compared(Path(name), ring)), flush=True)
