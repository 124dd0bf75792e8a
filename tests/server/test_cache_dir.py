"""A server that is started again knows what it was told before."""

from __future__ import annotations

import contextlib
import random
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


def _damage(folder: Path, dice: random.Random) -> None:
    """Flip a bit of a file, or cut it off."""
    file = dice.choice(sorted(folder.glob("*.safetensors")) or [folder / "none"])
    with contextlib.suppress(FileNotFoundError), file.open("r+b") as held:  # it may be gone
        size = file.stat().st_size
        at = dice.randrange(max(1, size))
        if not size or dice.random() < 0.3:
            held.truncate(at)
            return
        held.seek(at)
        (byte,) = held.read(1)
        held.seek(at)
        held.write(bytes([byte ^ 1 << dice.randrange(8)]))


def _held(folder: Path) -> int:
    """The bytes of all files that are still there."""
    total = 0
    for file in list(folder.glob("*.safetensors")):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


@pytest.mark.slow
def test_three_servers_that_are_killed_on_a_damaged_folder_say_what_one_says_alone(
    tmp_path: Path,
) -> None:
    """They keep to one limit, and no request fails."""
    dice, limit = random.Random(3), 10 << 20
    begins = [" ".join(dice.choices(LONG.split(), k=300)) for _ in range(3)]
    prompts = [f"{begin} {end}" for begin in begins for end in (LONG[:400], LONG[9:700], "So")]
    with running() as server:
        expected = {prompt: told(server, prompt)[0] for prompt in prompts}
    options = ("--cache-dir", str(tmp_path), "--cache-dir-bytes", "10MiB", "--cache-bytes", "24MiB")
    servers = [Running(*options).wait_ready() for _ in range(3)]
    cached = 0
    try:
        for turn in range(60):
            number, prompt = dice.randrange(3), dice.choice(prompts)
            text, _, count = told(servers[number], prompt)
            assert text == expected[prompt]
            cached += count
            if turn % 3 == 0:
                _damage(tmp_path, dice)
            if turn % 8 == 7:  # mostly while it writes
                servers[number].close()
                servers[number] = Running(*options).wait_ready()
            assert _held(tmp_path) <= limit
    finally:
        for server in servers:
            server.close()
    assert cached
