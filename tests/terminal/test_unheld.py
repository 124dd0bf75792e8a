"""What a schema says and nothing enforces is said after the text."""

from __future__ import annotations

from mlxgen.engine import Usage
from mlxgen.terminal.report import unheld


def test_what_is_left_out_or_violated_is_said() -> None:
    assert list(unheld(Usage())) == []
    said = list(unheld(Usage(left_out=("format=path",), violates="it violates pattern")))
    assert "format=path" in said[0] and "it violates pattern" in said[1]
