"""One of the processes that hold a model together, of ours or of mlx-lm's, or a process alone.

Owns what is run there. Must never know what is compared. Each line of standard input is a request
in JSON, with its name in ``ask``; each is answered with a line. All ranks of mlx-lm's are asked
the same; of ours only rank 0 is asked, as ``mlxgen.load`` does not return in the others.

    python -m scripts.benchmarks.rank mlxgen|mlx_lm FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import stream_generate
from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import load, sharded_load

import mlxgen
from mlxgen.machines.machines import Machines

from .batch import prompt_of, run_ours

Answer = dict[str, Any]


class Work:
    """``seconds`` in which this thread has worked, but not in evaluations: on a CPU, MLX wakes it
    for each primitive, which is not so on a GPU."""

    def __init__(self) -> None:
        self._evaluated = 0.0
        mx.eval, mx.async_eval = self._without(mx.eval), self._without(mx.async_eval)

    @property
    def seconds(self) -> float:
        return time.thread_time() - self._evaluated

    def _without(self, evaluate: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*arrays: Any) -> None:
            start = time.thread_time()
            try:
                evaluate(*arrays)
            finally:
                self._evaluated += time.thread_time() - start

        return wrapped


class Ours:
    """mlxgen."""

    def __init__(self, folder: Path) -> None:
        self.work = Work()
        self.lm = mlxgen.load(folder, draft="off")

    def generate(self, rows: int, tokens: int) -> Answer:
        """Seconds, those of them that this thread worked, and what was told to other ranks."""
        before, work = self._told(), self.work.seconds
        prompts = [prompt_of(8, i) for i in range(rows)]
        seconds = run_ours(self.lm, prompts, tokens, [{"temperature": 0}])
        work = self.work.seconds - work
        messages, nbytes = (now - then for now, then in zip(self._told(), before, strict=True))
        return {"seconds": seconds, "work": work, "messages": messages, "bytes": nbytes}

    def _told(self) -> tuple[int, int]:
        """Messages to the other ranks so far, and their bytes."""
        machines = Machines.here()
        if machines is None:
            return 0, 0
        return machines.channel.messages, machines.channel.sent_bytes


class Theirs:
    """mlx-lm."""

    def __init__(self, folder: Path) -> None:
        self.work = Work()
        self.group = mx.distributed.init()
        read = sharded_load if self.group.size() > 1 else load
        self.model, self.tokenizer = read(str(folder))[:2]
        self.tokenizer.eos_token_ids = []

    def generate(self, rows: int, tokens: int) -> Answer:
        """The same."""
        prompts = [prompt_of(8, i) for i in range(rows)]
        start, work = time.perf_counter(), self.work.seconds
        if rows == 1:
            stream = stream_generate(self.model, self.tokenizer, prompts[0], max_tokens=tokens)
            assert sum(1 for _ in stream) == tokens
        else:
            generator = BatchGenerator(self.model, stop_tokens=None)
            generator.insert(prompts, max_tokens=[tokens] * rows)
            left = rows
            while left:
                left -= sum(r.finish_reason is not None for r in generator.next_generated())
            generator.close()
        return {"seconds": time.perf_counter() - start, "work": self.work.seconds - work}


def main() -> None:
    library, folder = sys.argv[1:]
    side = (Ours if library == "mlxgen" else Theirs)(Path(folder))
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(side, request.pop("ask"))(**request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
