"""What is freed when the thread of a model has ended."""

from __future__ import annotations

import contextlib
import gc

from ..errors import MachineError
from ..load import join


def free_memory() -> None:
    """Give back what nobody refers to any more, such as a model whose thread has ended, here and on
    other machines."""
    import mlx.core as mx

    gc.collect()
    mx.clear_cache()
    machines = join()
    if machines is not None:
        with contextlib.suppress(MachineError), machines.turn():
            machines.flush()
