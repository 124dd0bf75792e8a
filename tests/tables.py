"""The tables of ``tests/data``, which have a case a line, as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def table(name: str) -> list[dict[str, Any]]:
    """All cases of a table."""
    lines = (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
