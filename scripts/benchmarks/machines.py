"""Two ranks on this machine, joined by MLX's ring, against mlx-lm's two with the same model.

Each rank computes with one thread, next to two threads of the ring, which never sleep while a sum
is under way: on two cores they take time from the computing thread. So sums take longer here than
over any cable; compare figures only with others that were taken here in turn.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

import mlx.core as mx
from mlx_lm.utils import save_model, sharded_load

import mlxgen
from mlxgen.machines.machines import Machines

from . import kit, servers
from .architectures import SHAPES, configuration, random_model

RANKS = 2
TOKENS = 40  # of each row in a run
SHAPE = SHAPES["as slow as a Mac's"]  # of a Llama in float32 whose passes take as long

Told: TypeAlias = dict[str, float]
Ask: TypeAlias = Callable[[int], Told]


def figures(turns: int) -> Iterator[kit.Figure]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as stack:
        folder = saved(Path(name, "model"))
        # Only our rank 0 is asked, since ``mlxgen.load`` does not return in the others
        ours = stack.enter_context(ranks(our_rank, folder, asked=1))
        theirs = stack.enter_context(ranks(their_rank, folder, asked=RANKS))
        for rows in (1, 4, 16):

            def seconds(ask: Ask) -> float:
                return ask(rows)["seconds"]  # noqa: B023

            found = kit.compare(lambda: seconds(ours), lambda: seconds(theirs), max(2, turns // 2))
            what = f"two ranks, {rows} rows: steps a second over mlx-lm's two ranks"
            yield kit.at_least(what, found.ratio, 1.0)
            told = ours(rows)
            what = f"two ranks, {rows} rows: bytes that rank 0 tells the other a step"
            text = f"{told['bytes'] / TOKENS:.0f} in {told['messages'] / TOKENS:.1f} messages"
            yield kit.plain(what, told["bytes"] / TOKENS, text)


def saved(folder: Path) -> Path:
    """A model of random weights, with the demo model's tokenizer."""
    shutil.copytree(kit.DEMO, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    save_model(folder, random_model("llama", **SHAPE))
    config = configuration("llama", **SHAPE)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@contextmanager
def ranks(rank: Callable[..., None], folder: Path, asked: int) -> Iterator[Ask]:
    """Processes that hold a model together. Yields a function that makes the first ``asked`` of
    them generate some rows, and returns rank 0's report."""
    context, hosts = multiprocessing.get_context("spawn"), folder / f"{rank.__name__}.json"
    hosts.write_text(json.dumps([[f"{servers.HOST}:{servers.free_port()}"] for _ in range(RANKS)]))
    pipes = [context.Pipe() for _ in range(RANKS)]
    processes = []
    for number, (_, theirs) in enumerate(pipes):
        place = {"MLX_HOSTFILE": str(hosts), "MLX_RANK": str(number)}
        processes.append(context.Process(target=rank, args=(theirs, folder, place)))
        processes[-1].start()
        theirs.close()  # so that reads fail when the process ends

    def ask(rows: int) -> Told:
        for pipe, _ in pipes[:asked]:
            pipe.send(rows)
        told: list[Told] = [pipe.recv() for pipe, _ in pipes[:asked]]
        return told[0]

    try:
        yield ask
    finally:
        for pipe, _ in pipes:
            pipe.close()
        for process in processes:
            process.join(10)
            process.kill()


def our_rank(pipe: Connection, folder: Path, place: dict[str, str]) -> None:
    """Answers requests for rows with the seconds, and the messages to other ranks."""
    os.environ.update(place)
    lm = mlxgen.load(folder, draft="off")
    machines = Machines.here()
    assert machines is not None
    send, told = machines.channel.send, list[int]()

    def count(message: bytes) -> None:
        told.append(len(message))
        send(message)

    machines.channel.send = count  # type: ignore[method-assign]
    for case in _asked(pipe, lm):
        told.clear()
        seconds = kit.timed(case.ours(), case.rows * TOKENS)
        pipe.send({"seconds": seconds, "messages": len(told), "bytes": sum(told)})


def their_rank(pipe: Connection, folder: Path, place: dict[str, str]) -> None:
    """The same with mlx-lm, without messages."""
    os.environ.update(place)
    mx.distributed.init()
    model, tokenizer = sharded_load(str(folder))[:2]
    for case in _asked(pipe, mlxgen.LanguageModel(model, tokenizer, draft="off")):
        pipe.send({"seconds": kit.timed(case.theirs(), case.rows * TOKENS)})


def _asked(pipe: Connection, lm: mlxgen.LanguageModel) -> Iterator[kit.Case]:
    while True:
        try:
            rows = pipe.recv()
        except EOFError:
            return
        prompts = [kit.prompt_of(8, i) for i in range(rows)]
        yield kit.Case(lm, prompts if rows > 1 else prompts[0], TOKENS)
