"""The training loop, with its optimiser.

Muon (Keller Jordan et al., 2024) updates matrices, Adam the rest. The schedule depends only on the
number of steps: a short warm-up, a constant part, and a linear decay over the last quarter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.optimizers import Adam, MultiOptimizer, Muon
from mlx.utils import tree_flatten, tree_map, tree_map_with_path, tree_unflatten
from rich.console import Console
from rich.progress import track
from tokenizers import Tokenizer

from demo_model.batches import Batch, steps
from demo_model.corpus import Mix

Weights = dict[str, Any]
Loss = Callable[[Any, Batch], mx.array]  # of a network, summed over the batch's places

_RISE: Final = 60
_FALL: Final = 0.25  # of all steps
_LAST: Final = 0.01  # of the rate
_AVERAGING: Final = 0.995
_DECAY: Final = 0.05  # of matrices, times the rate
_BETAS: Final = (0.9, 0.97)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that determines the result of a training."""

    name: str
    seed: int
    steps: int
    copy_steps: int
    tokens: int  # in one batch of a step
    matrix_rate: float = 0.016
    rate: float = 2.5e-3
    mix: Mix | None = None  # None: the corpus's own mixes, which change over time


def rate_at(step: int, steps: int) -> float:
    """The share of the full learning rate at a step."""
    rise = min(1.0, (step + 1) / _RISE)
    left = (steps - step) / (steps * _FALL)
    return rise * max(_LAST, min(1.0, left))


def train(plan: Plan, network: Any, loss: Loss, tokenizer: Tokenizer, console: Console) -> Weights:
    """Train a fresh `network`, and return the averaged weights."""
    optimiser = new_optimiser(network)
    averaged = weights_of(network)
    batches = steps(
        tokenizer, plan.seed, tokens=plan.tokens, copy_steps=plan.copy_steps, mix=plan.mix
    )
    steps_done = track(islice(batches, plan.steps), plan.name, plan.steps, console=console)
    recent = 0.0
    for step, parts in enumerate(steps_done):
        mean, gradients = _gradients(network, loss, parts)
        share = rate_at(step, plan.steps)
        rates = plan.matrix_rate * share, plan.rate * share
        weights = update(optimiser, network, gradients, *rates)
        keep = min(_AVERAGING, (step + 1) / (step + 10))
        averaged = tree_map(lambda a, w, k=keep: k * a + (1 - k) * w, averaged, weights)
        mx.eval(weights, averaged, optimiser.state, mean)
        recent = float(mean) if step == 0 else 0.98 * recent + 0.02 * float(mean)
        if (step + 1) % 100 == 0:
            console.print(f"{plan.name} step {step + 1}/{plan.steps} loss {recent:.4f}")
    return averaged


def _gradients(network: Any, loss: Loss, parts: Sequence[Batch]) -> tuple[mx.array, Weights]:
    """Mean loss and clipped gradient of one step, over all its batches."""
    total, count = mx.array(0.0), 0
    both = nn.value_and_grad(network, loss)
    summed: dict[str, mx.array] = {}
    for batch in parts:
        value, grads = both(network, batch)
        flat = flatten(grads)
        mx.eval(value, flat)
        total = total + value
        count += batch.targets.size
        summed = {name: summed[name] + g if summed else g for name, g in flat.items()}
    squares = mx.stack([(grad * grad).sum() for grad in summed.values()])
    norm = mx.sqrt(squares.sum()) / count
    scale = mx.minimum(1.0, 1.0 / (norm + 1e-6)) / count
    result: Weights = tree_unflatten([(name, grad * scale) for name, grad in summed.items()])
    return total / count, result


# ---- the optimiser -----------------------------------------------------------------------------


def flatten(tree: Weights) -> dict[str, mx.array]:
    """The arrays of a tree by their dotted names."""
    return dict(cast("list[tuple[str, mx.array]]", tree_flatten(tree)))


def weights_of(network: nn.Module) -> Weights:
    """The trainable weights, without parts that have none."""
    tree: Weights = tree_unflatten(list(flatten(network.trainable_parameters()).items()))
    return tree


def new_optimiser(network: nn.Module) -> MultiOptimizer:
    """A new optimiser for this network."""
    kinds = [Muon(0.0, weight_decay=0.0), Adam(0.0, [*_BETAS], bias_correction=True)]
    optimiser = MultiOptimizer(kinds, [_is_matrix])
    optimiser.init(weights_of(network))
    return optimiser


def update(
    optimiser: MultiOptimizer,
    network: nn.Module,
    gradients: Weights,
    matrix_rate: float,
    rate: float,
) -> Weights:
    """Take one step; return the weights after it."""
    muon, adam = optimiser.optimizers
    muon.learning_rate, adam.learning_rate = matrix_rate, rate
    kept = 1 - _DECAY * matrix_rate
    decayed = tree_map_with_path(
        lambda name, w: w * kept if _is_matrix(name, w) else w, weights_of(network)
    )
    network.update(optimiser.apply_gradients(gradients, decayed))
    return weights_of(network)


def _is_matrix(name: str, weight: mx.array) -> bool:
    return ".layers." in name and weight.ndim == 2
