"""``python -m scripts.agent_trials.scripted``: a server whose model follows a script.

The script is a list of ``[pattern, answer]`` in the file that ``$MLXGEN_SCRIPT`` names: the model
gives the answer of the first pattern that is found in the text of its prompt. The tokenizer and the
chat template are those of the demo model, with a context that is long enough for agents.

If ``$MLXGEN_RECORD`` names a folder, each request is written there, with the status of its answer
and the fields that had no effect.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import mlxgen
from mlxgen.server import app, process
from mlxgen.server.__main__ import main
from mlxgen.server.engine import boot

CONTEXT = 200_000


class Scripted(nn.Module):
    """Its one layer stores the token ids themselves, so that it knows what it was given. It speaks
    at the end of what it is given only, so nothing can be drafted for it."""

    def __init__(self, vocab_size: int, vocabulary: Any, script: Sequence[tuple[str, str]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers = [None]
        self.vocab_size = vocab_size
        self._vocabulary = vocabulary
        self._script = script
        self._begun: list[tuple[int, int, list[int]]] = []
        """Prompts, by length and hash, and what is said after them."""

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        layer = (cache or self.make_cache())[0]
        ids = inputs.astype(mx.float32)[:, None, :, None]
        keys, _ = layer.update_and_fetch(ids, ids)
        logits = np.full((*inputs.shape, self.vocab_size), -50.0, dtype=np.float32)
        for row, history in enumerate(np.array(keys)[:, 0, :, 0].astype(int).tolist()):
            logits[row, :, self._next(history)] = 0
        return mx.array(logits)

    def _next(self, history: list[int]) -> int:
        for length, known, answer in reversed(self._begun):
            said = history[length:]
            goes_on = len(said) < len(answer) and said == answer[: len(said)]
            if goes_on and hash(tuple(history[:length])) == known:
                return answer[len(said)]
        text = self._vocabulary.decode(history)
        found = next(answer for pattern, answer in self._script if re.search(pattern, text))
        answer = [*self._vocabulary.encode(found, special=False), min(self._vocabulary.eos)]
        self._begun.append((len(history), hash(tuple(history)), answer))
        return answer[0]


def scripted() -> mlxgen.LanguageModel:
    """The model; raises if there is no script."""
    demo = mlxgen.load()
    script = json.loads(Path(os.environ["MLXGEN_SCRIPT"]).read_text(encoding="utf-8"))
    model = Scripted(demo.vocab_size, demo.vocabulary, script)
    lm = mlxgen.LanguageModel(model, demo.tokenizer, name="scripted", draft="off")
    lm.max_context = CONTEXT
    return lm


def recording(make_app: Callable[..., ASGIApp], folder: Path) -> Callable[..., ASGIApp]:
    """Makes an application that writes its requests into a folder, in the order of their ends."""
    numbers = count(1)

    def made(*given: Any) -> ASGIApp:
        served = make_app(*given)

        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            body = bytearray()
            answer: dict[str, Any] = {}

            async def receiving() -> Message:
                message = await receive()
                body.extend(message.get("body", b""))
                return message

            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    ignored = dict(message["headers"]).get(b"x-mlxgen-ignored", b"")
                    answer.update(status=message["status"], ignored=ignored.decode())
                await send(message)

            await served(scope, receiving, sending)
            if scope["type"] == "http":
                query = scope["query_string"].decode()
                asked = {
                    "method": scope["method"],
                    "path": scope["path"] + ("?" + query if query else ""),
                    "headers": [[k.decode(), v.decode("latin-1")] for k, v in scope["headers"]],
                    "body": json.loads(body) if body else None,
                }
                path = folder / f"{next(numbers):03}.json"
                path.write_text(json.dumps(answer | asked, indent=1), encoding="utf-8")

        return recorded

    return made


if __name__ == "__main__":
    if "MLXGEN_RECORD" in os.environ:
        records = Path(os.environ["MLXGEN_RECORD"])
        setattr(process, "make_app", recording(app.make_app, records))  # noqa: B010
    setattr(boot, "load_model", lambda *_, **__: scripted())  # noqa: B010 (imported there, not made)
    main()
