"""How a model's KV cache may be quantised: what the commands, ``load`` and a model accept."""

from __future__ import annotations

from typing import Any

from ..errors import OptionError
from .rule import Rule, integer, whole

_MOST = 1 << 31


def _one_of(*values: int) -> Rule:
    def read(value: Any) -> int:
        number = whole(value)
        if number not in values:
            raise ValueError(repr(number))
        return number

    *most, last = map(str, values)
    return Rule(None, f"{', '.join(most)} or {last}", read)


KV_BITS = _one_of(2, 3, 4, 5, 6, 8)
KV_GROUP_SIZE = _one_of(32, 64, 128)
KV_QUANT_START = integer(0, 0, _MOST)


def check_kv(bits: int | None, group_size: int | None, start: int) -> None:
    """Raise ``OptionError`` for a value that no model could do with."""
    KV_QUANT_START.check("kv_quant_start", start)
    for name, rule, value in (
        ("kv_bits", KV_BITS, bits),
        ("kv_group_size", KV_GROUP_SIZE, group_size),
    ):
        if value is not None:
            rule.check(name, value)
    if bits is None:
        for name, given in (("kv_group_size", group_size), ("kv_quant_start", start)):
            if given:
                raise OptionError(name, "has no effect without kv_bits; set that, too")
