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
DRAFT = {**WHOLE, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4}
"""Llamas in float32: one whose passes take as long as a Mac's, one with the graph of an 8B, and a
small one."""
CUT = ("intermediate_size", "num_attention_heads", "num_key_value_heads")


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
    """``steps``: seconds of a step of so many rows, of two ranks of ours, of a process alone, and
    of two ranks and a process with mlx-lm. ``sums``: of its sums by themselves, with so many bytes
    (``summed``).

    ``work`` is that of the host's thread which steps, on rank 0 over alone; ``beside``: the same
    without what mlx-lm's rank 0 works more than alone, which is the graph of the sums.
    ``messages`` with so many bytes (``told``) go to the other rank.
    """

    steps: list[Spread]
    sums: Spread
    work: Spread
    beside: Spread
    host: float
    messages: float
    told: float
    summed: int


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
        sums = self._theirs.ranks.ask("sums", rows=rows)["sums"]
        bare = [self._theirs.ranks.ask("bare", sums=sums, times=20)["seconds"] for _ in warm]
        last = warm[-1][0]
        return Cost(
            steps=[Spread.of([turn[i]["seconds"] / tokens for turn in warm]) for i in range(4)],
            sums=Spread.of([each / 20 for each in bare]),
            work=Spread.of([a / b for a, b, _, _ in zip(*work, strict=True)]),
            beside=Spread.of([(a - (c - d)) / b for a, b, c, d in zip(*work, strict=True)]),
            host=Spread.of(work[0]).median,
            messages=last["messages"] / tokens,
            told=last["bytes"] / tokens,
            summed=sum(sums),
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


def drafts(turns: int, tokens: int = 40) -> Comparison:
    """Of a small model that drafts: whole in one process, against cut over two ranks."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = saved(DRAFT, Path(name, "draft"))
        with holding("mlx_lm", folder, 1) as whole, holding("mlx_lm", folder) as ranks:
            return compare(lambda: _step(whole, 1, tokens), lambda: _step(ranks, 1, tokens), turns)


def _step(ranks: Ranks, rows: int, tokens: int) -> float:
    """Seconds of a step of so many."""
    return float(ranks.ask("generate", rows=rows, tokens=tokens)["seconds"]) / tokens
