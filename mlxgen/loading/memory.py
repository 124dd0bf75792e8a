"""How much memory there is for models and their caches."""

from __future__ import annotations

import os


def memory_limit() -> tuple[int, str]:
    """The most bytes for weights and caches, and the words that introduce the number."""
    import mlx.core as mx

    device = mx.device_info()
    if "max_recommended_working_set_size" in device:  # Metal
        return int(device["max_recommended_working_set_size"]), "the device recommends at most"
    if "total_memory" in device:  # CUDA
        return int(device["total_memory"]), "the device has"
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "this machine has"
