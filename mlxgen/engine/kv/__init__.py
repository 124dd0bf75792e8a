"""The device's half of a generation: its KV cache, alone and in a batch, and its memory."""

from .commands import Device
from .footprint import SMALLEST, Activations, Footprint, Measures
from .groups import Slots, batch_equals_alone
from .held import Fed, Later, Unread
from .kv import KV
from .layers import PREFILL_STEP, CacheFactory, LayerCache
from .slots import Group, Slot

__all__ = [
    "KV",
    "PREFILL_STEP",
    "SMALLEST",
    "Activations",
    "CacheFactory",
    "Device",
    "Fed",
    "Footprint",
    "Group",
    "Later",
    "LayerCache",
    "Measures",
    "Slot",
    "Slots",
    "Unread",
    "batch_equals_alone",
]
