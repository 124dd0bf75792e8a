"""Two ranks on this machine, joined by MLX's ring, against mlx-lm's two with the same model.

Each rank computes with one thread, beside two of the ring, which never sleep while a sum is on its
way: they take what the thread that computes leaves, and on two cores more than that. So sums take
longer here than over any cable; figures are compared with others that were taken here in turn.

    python -m scripts.benchmarks.machines mlxgen|mlx_lm FOLDER    one of the ranks

Each line of a rank's standard input is a request in JSON, and is answered with a line. All ranks of
mlx-lm's are asked; of ours only rank 0 is, as ``mlxgen.load`` does not return in the others.
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
from pathlib import Path
from typing import IO, Any

import mlx.core as mx
from mlx_lm import stream_generate
from mlx_lm.utils import save_model, sharded_load

import mlxgen
from mlxgen.machines.machines import Machines

from .architectures import configuration, random_model
from .kit import DEMO, Figure, at_least, compare, ours_together, prompt_of, theirs_together, timed

RANKS = 2
TOKENS = 40  # of each row in a run
SHAPE: dict[str, Any] = {
    "vocab_size": 1_024,
    "hidden_size": 1_024,
    "intermediate_size": 4_096,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
"""A Llama in float32 whose passes take as long as a Mac's."""


def figures(turns: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name, contextlib.ExitStack() as stack:
        folder = saved(Path(name, "model"))
        ours, theirs = (stack.enter_context(Ranks(each, folder)) for each in ("mlxgen", "mlx_lm"))
        for rows in (1, 4, 16):
            ratio = compare(
                lambda rows=rows: ours.ask(rows)["seconds"],  # type: ignore[misc]
                lambda rows=rows: theirs.ask(rows)["seconds"],  # type: ignore[misc]
                max(2, turns // 2),
            ).ratio
            what = f"two ranks, {rows} rows: steps a second over mlx-lm's two ranks"
            yield at_least(what, ratio.median, 1.0, ratio)
            told = ours.ask(rows)
            what = f"two ranks, {rows} rows: bytes that rank 0 tells the other a step"
            nbytes, messages = (told[each] / TOKENS for each in ("bytes", "messages"))
            yield Figure(what, f"{nbytes:.0f} in {messages:.1f} messages", value=nbytes)


def saved(folder: Path) -> Path:
    """A model of random weights, with the demo model's tokenizer."""
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    save_model(folder, random_model("llama", **SHAPE))
    config = configuration("llama", **SHAPE)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


class Ranks:
    """Processes of a library that hold a model together, inside a ``with``."""

    def __init__(self, library: str, folder: Path) -> None:
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-m", __spec__.name, library, str(folder)]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as hosts:
            json.dump([[f"127.0.0.1:{port}"] for port in _free_ports(RANKS)], hosts)
            hosts.flush()
            place = {"OPENBLAS_NUM_THREADS": "1", "MLX_HOSTFILE": hosts.name}
            self.processes = [
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self.log,
                    text=True,
                    env={**os.environ, **place, "MLX_RANK": str(rank)},
                )
                for rank in range(RANKS)
            ]
            self.asked = self.processes[:1] if library == "mlxgen" else self.processes
            for process in self.asked:
                self._line(process)

    def ask(self, rows: int, tokens: int = TOKENS) -> dict[str, Any]:
        """The answer of rank 0, after all that are asked have answered."""
        for process in self.asked:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"rows": rows, "tokens": tokens}) + "\n")
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
            self.__exit__()
            raise RuntimeError(f"a rank has ended: {reason}")
        return line

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


# ---- a rank ------------------------------------------------------------------------------------


def our_rank(folder: Path) -> Iterator[dict[str, Any]]:
    """Answers what is asked: seconds, and what was told to other ranks."""
    lm = mlxgen.load(folder, draft="off")
    machines = Machines.here()
    assert machines is not None
    channel = machines.channel
    for rows, tokens in _asked():
        messages, nbytes = channel.messages, channel.sent_bytes
        prompts = [prompt_of(8, i) for i in range(rows)]
        seconds = timed(ours_together(lm, prompts, tokens), rows * tokens)
        told = {"messages": channel.messages - messages, "bytes": channel.sent_bytes - nbytes}
        yield {"seconds": seconds, **told}


def their_rank(folder: Path) -> Iterator[dict[str, Any]]:
    """The same of mlx-lm's, but for what was told."""
    mx.distributed.init()
    model, tokenizer = sharded_load(str(folder))[:2]
    tokenizer.eos_token_ids = []
    for rows, tokens in _asked():
        prompts = [prompt_of(8, i) for i in range(rows)]
        if rows == 1:
            given = stream_generate(model, tokenizer, prompts[0], max_tokens=tokens)
            yield {"seconds": timed(given, tokens)}
        else:
            yield {"seconds": timed(theirs_together(model, prompts, tokens), rows * tokens)}


def _asked() -> Iterator[tuple[int, int]]:
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        yield request["rows"], request["tokens"]


if __name__ == "__main__":
    rank = our_rank if sys.argv[1] == "mlxgen" else their_rank
    for answer in rank(Path(sys.argv[2])):
        print(json.dumps(answer), flush=True)
