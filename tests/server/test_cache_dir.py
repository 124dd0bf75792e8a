"""A server that is started again knows what it was told before."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .running import Running, running

LONG = "The fox told the owl a story about a castle by the sea. " * 80


def told(server: Running, *messages: str) -> tuple[str, int, int]:
    """The answer, and how many tokens of the prompt there were, and came from the cache."""
    body: dict[str, Any] = {"prompt": "".join(messages), "max_tokens": 8, "temperature": 0}
    answer = server.post("/v1/completions", body).json()
    usage = answer["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return answer["choices"][0]["text"], usage["prompt_tokens"], cached


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_costs_nothing_but_reading(end: signal.Signals, tmp_path: Path) -> None:
    folder = str(tmp_path / "deep" / "prefixes")
    with running("--cache-dir", folder, "--cache-dir-bytes", "1GiB") as server:
        text, count, cached = told(server, LONG)
        assert count > 900 and cached == 0
        if end == signal.SIGKILL:  # it is written while the server has nothing else to do
            pieces = 1 + (count + 7) // 256
            files = partial(Path(folder).glob, "*.safetensors")
            server.wait_until(lambda: len(list(files())) == pieces, "it is not written")
        assert server.end(end) == (0 if end == signal.SIGTERM else -end)
    with running("--cache-dir", folder, "--cache-dir-bytes", "1GiB") as server:
        again, count, cached = told(server, LONG)
        assert again == text and cached == count - 1  # whose logits are needed
        assert server.figure("mlxgen_restored_tokens_total") >= cached
        assert 0 < server.figure("mlxgen_disk_bytes") <= server.figure("mlxgen_disk_limit_bytes")
        assert told(server, LONG, "And then")[0]
