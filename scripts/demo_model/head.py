"""The multi-token prediction head, in training.

Owns its forward pass, which is the one that drafts: the first drafted token comes from the trunk's
state, each later one from the head's previous state, both after their final norms. The loss
compares it with the trunk's distribution at the same place. Training never changes the trunk.

The names of the weights are DeepSeek V3's, with a Llama block; the embedding is the trunk's.
"""

from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.llama import TransformerBlock

from demo_model import network
from demo_model.batches import Batch

# Weights of the losses of drafted tokens: a later one matters only if those before are accepted.
DEPTHS: Final = (1.0, 0.8, 0.6, 0.4)


class Layer(TransformerBlock):  # type: ignore[misc]
    """A Llama block that reads a token and the state before it."""

    def __init__(self) -> None:
        args = network.arguments("main")
        super().__init__(args)
        width = args.hidden_size
        self.enorm, self.hnorm, norm = (nn.RMSNorm(width, args.rms_norm_eps) for _ in range(3))
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        self.shared_head = {"norm": norm}

    def state(
        self, embedded: mx.array, before: mx.array, mask: mx.array | None, kv: Any
    ) -> mx.array:
        """The states [rows, length, width] after tokens with these embeddings and the states before
        them; `kv` is a cache."""
        x = self.eh_proj(mx.concatenate([self.enorm(embedded), self.hnorm(before)], axis=-1))
        result: mx.array = self.shared_head["norm"](self(x, mask, kv))
        return result


class Head(nn.Module):
    """All weights are in `layers`, by which the optimiser recognises matrices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = {"layers": [Layer()]}

    @property
    def layer(self) -> Layer:
        return self.model["layers"][0]


def new_head(seed: int) -> Any:
    return network.fresh(Head(), seed, layers=1)


def loss(trunk: Any, head: Head, batch: Batch) -> mx.array:
    """The summed cross-entropy of all depths at the batch's places, against the trunk's softmax."""
    states = mx.stop_gradient(trunk.model(batch.tokens))
    expected = mx.stop_gradient(mx.softmax(network.logits(trunk, states, batch.places), axis=-1))
    total = mx.array(0.0)
    for weight, after in zip(DEPTHS, unrolled(trunk, head, batch.tokens, states), strict=True):
        logits = network.logits(trunk, after, batch.places)
        losses = nn.losses.cross_entropy(logits, expected, reduction="sum")
        total = total + weight * losses
    return total / sum(DEPTHS)


class _Entries:
    """Stands in for a cache: the keys and values of all depths, each beginning at place 0."""

    offset = 0

    def __init__(self) -> None:
        self._held: list[mx.array] = []

    def update_and_fetch(self, *given: mx.array) -> tuple[mx.array, ...]:
        """Add the keys and values of a depth; return those of all depths, concatenated."""
        held = self._held or [array[:, :, :0] for array in given]
        self._held = [mx.concatenate([*pair], axis=2) for pair in zip(held, given, strict=True)]
        return tuple(self._held)


def unrolled(trunk: Any, head: Head, tokens: mx.array, states: mx.array) -> list[mx.array]:
    """The head's states [rows, length, width] at each depth, for the trunk's `states`.

    The state of depth d at place i is the head's state there for the d-th entry of a draft: entries
    up to i - d + 1 come from the trunk's states, the next from the head's state of depth 1, and so
    on.
    """
    length = tokens.shape[1]
    embedded, kv = trunk.model.embed_tokens(tokens), _Entries()
    result: list[mx.array] = []
    for last in range(len(DEPTHS)):
        before = mx.pad(states, [(0, 0), (1, 0), (0, 0)])[:, :-1]
        # A place sees all of the trunk's entries up to a limit, and a single one of each depth
        seen = [mx.tri(length, length, -last)]
        seen += [mx.eye(length, k=depth - last) for depth in range(1, last + 1)]
        states = head.layer.state(embedded, before, mx.concatenate(seen, axis=-1) > 0, kv)
        result.append(states)
    return result
