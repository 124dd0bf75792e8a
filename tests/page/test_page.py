"""What the page computes without drawing it, tested by Node's own runner where Node is."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OLDEST = 20


def _is_new(node: str) -> bool:
    found = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    return int(found.lstrip("v").partition(".")[0]) >= OLDEST


@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("*.test.mjs")))
def test_the_modules_of_the_page(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)  # OpenBLAS is for the model alone
    node = shutil.which("node")
    if node is None or not _is_new(node):
        pytest.skip(f"tests of the page's modules: Node {OLDEST} or newer is not installed")
    environment = {**os.environ, "TZ": "UTC"}
    command = [node, "--test", str(HERE / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
