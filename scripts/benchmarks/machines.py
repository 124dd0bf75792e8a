"""Two ranks on this machine, joined by MLX's ring: what holding a model together costs.

Owns the models, the processes and what is compared. Each rank computes with one thread, beside two
of the ring, which never sleep while a sum is on its way: they take what the thread that computes
leaves, and on two cores more than that. So sums take longer here than over any cable, and more so
the later the other rank comes; figures are compared with others that were taken here in turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import IO, Any, NamedTuple

from mlx_lm.utils import save_model

from .alternate import Comparison, Spread, compare
from .architectures import configuration, random_model
from .figures import Figure, at_least, at_most

RANKS = 2
TOKENS = 40  # of each row in a run
WHOLE: dict[str, Any] = {
    "vocab_size": 1_024,
    "hidden_size": 1_024,
    "intermediate_size": 4_096,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
DEEP = {**WHOLE, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 32}
DEEP |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
"""Llamas in float32: one whose passes take as long as a Mac's, and one with the graph of an 8B."""
CUT = ("intermediate_size", "num_attention_heads", "num_key_value_heads")


def figures(turns: int) -> Iterator[Figure]:
    turns = max(2, turns // 2)
    with bench(WHOLE, turns) as both:
        for rows in (1, 4, 16):
            ratio = both.speed(rows).ratio
            what = f"two ranks, {rows} rows: steps a second over mlx-lm's two ranks"
            yield at_least(what, ratio.median, 1.0, ratio)
        for rows in (1, 16):
            cost = both.cost(rows)
            what = f"two ranks, {rows} rows: bytes that rank 0 tells the other a step"
            yield Figure(what, f"{cost.told:.0f} in {cost.messages:.1f} messages", value=cost.told)
    with bench(DEEP, turns) as both:
        for rows in (1, 16):
            work = both.cost(rows).work
            what = f"32 layers, {rows} rows: host time of rank 0 over that of its part alone, less "
            what += "what mlx-lm's takes for the graph of the sums"
            yield at_most(what, work.median, 1.1, work)


def cut(shape: dict[str, Any]) -> dict[str, Any]:
    """What a rank has of a model."""
    return {name: size // RANKS if name in CUT else size for name, size in shape.items()}


def saved(shape: dict[str, Any], folder: Path) -> Path:
    """A model of random weights, with the demo model's tokenizer."""
    demo = Path(str(resources.files("mlxgen"))) / "demo" / "model"
    shutil.copytree(demo, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    save_model(folder, random_model("llama", **shape))
    config = configuration("llama", **shape)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


class Ranks:
    """Processes of a library that hold a model together, or a single one."""

    def __init__(self, library: str, folder: Path, count: int = RANKS) -> None:
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-m", "scripts.benchmarks.rank", library, str(folder)]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as hosts:
            json.dump([[f"127.0.0.1:{port}"] for port in _free_ports(count)], hosts)
            hosts.flush()
            places = [{"MLX_RANK": str(i), "MLX_HOSTFILE": hosts.name} for i in range(count)]
            self.processes = [
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self.log,
                    text=True,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **(place if count > 1 else {})},
                )
                for place in places
            ]
            self.asked = self.processes[:1] if library == "mlxgen" else self.processes
            for process in self.asked:
                self._line(process)

    def ask(self, name: str, **request: Any) -> dict[str, Any]:
        """The answer of rank 0, after all that are asked have answered."""
        for process in self.asked:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"ask": name, **request}) + "\n")
            process.stdin.flush()
        answers = [json.loads(self._line(process)) for process in self.asked]
        first: dict[str, Any] = answers[0]
        return first

    def _line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            self.log.seek(0)
            reason = self.log.read()[-1_000:].decode(errors="replace")
            self.close()
            raise RuntimeError(f"a rank has ended: {reason}")
        return line

    def close(self) -> None:
        """Be rid of them, however they are."""
        for process in self.processes:
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    assert pipe is not None
                    pipe.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.log.close()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


@contextlib.contextmanager
def holding(library: str, folder: Path, count: int = RANKS) -> Iterator[Ranks]:
    """Ranks that are ready, and are gone afterwards."""
    ranks = Ranks(library, folder, count)
    try:
        yield ranks
    finally:
        ranks.close()


class Pair(NamedTuple):
    """Of one library: two ranks, and a process alone with what one of them has of the model."""

    ranks: Ranks
    alone: Ranks


class Cost(NamedTuple):
    """What the host's thread that steps works on rank 0, over what it works in a process alone,
    without what mlx-lm's rank 0 works more than alone; and what rank 0 tells the other a step."""

    work: Spread
    messages: float
    told: float


class Bench:
    """Both libraries, to be asked in turn."""

    def __init__(self, ours: Pair, theirs: Pair, turns: int) -> None:
        self._ours, self._theirs, self._turns = ours, theirs, turns

    def speed(self, rows: int, tokens: int = TOKENS) -> Comparison:
        """Of generating with two ranks, against mlx-lm's with the same model."""
        ours, theirs = self._ours.ranks, self._theirs.ranks
        return compare(
            lambda: _step(ours, rows, tokens), lambda: _step(theirs, rows, tokens), self._turns
        )

    def cost(self, rows: int, tokens: int = TOKENS) -> Cost:
        """What a step takes, and what of it."""
        sides = [*self._ours, *self._theirs]
        turns: list[list[dict[str, Any]]] = []
        for turn in range(self._turns + 1):
            order = sides if turn % 2 else sides[::-1]
            answers = [ranks.ask("generate", rows=rows, tokens=tokens) for ranks in order]
            turns.append(answers if turn % 2 else answers[::-1])
        warm = turns[1:]
        work = [[turn[i]["work"] / tokens for turn in warm] for i in range(4)]
        last = warm[-1][0]
        return Cost(
            Spread.of([(a - (c - d)) / b for a, b, c, d in zip(*work, strict=True)]),
            last["messages"] / tokens,
            last["bytes"] / tokens,
        )


@contextlib.contextmanager
def bench(shape: dict[str, Any], turns: int) -> Iterator[Bench]:
    """All processes of a measurement."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, contextlib.ExitStack() as stack:
        whole, part = saved(shape, Path(name, "whole")), saved(cut(shape), Path(name, "part"))
        ours, theirs = (
            Pair(
                stack.enter_context(holding(library, whole)),
                stack.enter_context(holding(library, part, 1)),
            )
            for library in ("mlxgen", "mlx_lm")
        )
        yield Bench(ours, theirs, turns)


def _step(ranks: Ranks, rows: int, tokens: int) -> float:
    """Seconds of a step of so many."""
    return float(ranks.ask("generate", rows=rows, tokens=tokens)["seconds"]) / tokens
