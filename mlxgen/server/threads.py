"""How work in the server's threads is broken off, and what is freed after it.

Python has no way to end a thread. What can be done is to raise an exception in it: that ends code
in Python, but not code that waits in C.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc

from ..errors import MachineError
from ..load import join
from ..workers import Work


class Stopped(BaseException):
    """Raised in a thread of the operator's code that took too long."""


def stop(work: Work) -> None:
    """Raise ``Stopped`` in a worker's thread as soon as it runs Python code."""
    work.abandon()
    if work.ident and not work.is_over:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(work.ident), ctypes.py_object(Stopped)
        )


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
