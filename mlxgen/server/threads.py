"""How the server's threads end: tidily, or because somebody else wants them to.

Python has no way to end a thread. What can be done is to raise an exception in it: that ends code
in Python, but not code that waits in C.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading

from ..errors import MachineError
from ..load import join


class Stopped(BaseException):
    """Raised in a thread of the operator's code that took too long."""


def stop_thread(thread: threading.Thread) -> None:
    """Raise ``Stopped`` in a thread as soon as it runs Python code."""
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped)
        )


def leave_mlx() -> None:
    """Clean up after compiled functions, as a thread must before it ends."""
    with contextlib.suppress(Exception):
        import mlx.core as mx

        mx.clear_streams()


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
