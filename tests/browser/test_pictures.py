"""The pictures of `docs/page.md`; ``MLXGEN_PICTURES=docs/screenshots`` draws these anew."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..server.running import Running
from .driving import Chat, read

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PICTURES: dict[str, Any] = read("pictures.json")


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture(name: str, browser: Browser, server: Running, tmp_path: Path) -> None:
    picture = dict(PICTURES[name])
    steps = picture.pop("steps")
    with Chat.opened(browser, server.url, **picture) as chat:
        chat.act(steps)
        path = Path(os.environ.get("MLXGEN_PICTURES") or tmp_path, f"{name}.png")
        chat.page.screenshot(path=path, animations="disabled")
        assert path.stat().st_size < 180_000
        chat.check_clean()
