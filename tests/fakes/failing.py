"""Models that fail on purpose: while a pass is built, when it is submitted, or when it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import mlx.core as mx
import pytest

from mlxgen.engine.kv.held import Here

from .scripted import ScriptedModel
from .speaking import Speaker

How: TypeAlias = Literal["built", "submitted", "read"]
HOWS: tuple[How, ...] = ("built", "submitted", "read")
MESSAGE = "the device is gone"


class Unread:
    """Failures that nobody was told of yet. MLX tells the first who waits for the device.

    Not made by MLX itself: after a file that breaks off, say, its streams may hang for good.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures = 0
        read = Here.read

        def told(here: Here, array: mx.array) -> list[int]:
            if self.failures:
                self.failures = 0
                raise RuntimeError(MESSAGE)
            return read(here, array)

        monkeypatch.setattr(Here, "read", told)


class FailingModel(ScriptedModel):
    """Fails with every pass that has a row whose history ``fails``; ``failures`` counts them."""

    how: How
    unread: Unread | None
    failures: int

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        before = self.failures
        logits = super().__call__(inputs, cache)
        return logits if self.failures == before else broken(logits, self.how, self.unread)


def fail(
    speaker: Speaker,
    fails: Callable[[tuple[int, ...]], bool],
    how: How = "built",
    unread: Unread | None = None,
) -> None:
    """Have a speaker's model fail from now on with the histories that ``fails`` is true of."""
    model = speaker.model
    script = model.script

    def checked(history: tuple[int, ...]) -> Any:
        if fails(history):
            model.failures += 1
        return script(history)

    model.__class__ = FailingModel
    model.how, model.unread, model.failures = how, unread, 0
    model.script = checked


def broken(logits: mx.array, how: How, unread: Unread | None) -> mx.array:
    """What a pass gives that fails, the layers of which have its tokens already."""
    if how == "built":
        raise RuntimeError(MESSAGE)
    if how == "submitted":
        return logits + _never_given()
    assert unread is not None
    unread.failures += 1
    return logits


def _never_given() -> mx.array:
    """What a compiled function was traced with: it has no value, which its submission says."""
    traced: list[mx.array] = []

    def look(x: mx.array) -> mx.array:
        traced.append(x)
        return x + 1

    mx.compile(look)(mx.array(0.0))
    return traced[0]
