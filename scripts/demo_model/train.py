"""The training loop, with its optimiser and checkpoints.

Matrices are updated by Muon (Keller Jordan et al., 2024), the rest by AdamW. The schedule depends
on the number of steps only: a short rise, a constant part, and a linear fall over the last quarter.
The number of steps may be changed when a training is resumed, as long as the fall has not begun;
the result is that of a training that had this number from the start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from rich.console import Console
from rich.progress import Progress
from tokenizers import Tokenizer

from demo_model.batches import PARTS, Batch, Batches
from demo_model.corpus import Mix

Weights = dict[str, Any]
Loss = Callable[[Weights, Batch], mx.array]  # summed over the batch's places

_RISE: Final = 60
_FALL: Final = 0.25  # of all steps
_LAST: Final = 0.01  # of the rate
_AVERAGING: Final = 0.995
_SAVE_EVERY: Final = 100
_MOMENTUM: Final = 0.95
_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
_BETAS: Final = (0.9, 0.97)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that decides the result of a training."""

    name: str
    seed: int
    steps: int
    copy_steps: int
    tokens: int  # in one part of a step
    matrix_rate: float = 0.016
    rate: float = 2.5e-3
    mix: Mix | None = None  # instead of the corpus's own, which shifts


def rate_at(step: int, steps: int) -> float:
    """The share of the full learning rate at a step."""
    rise = min(1.0, (step + 1) / _RISE)
    left = (steps - step) / (steps * _FALL)
    return rise * max(_LAST, min(1.0, left))


def train(
    plan: Plan,
    weights: Weights,
    loss: Loss,
    tokenizer: Tokenizer,
    checkpoint: Path,
    console: Console,
) -> Weights:
    """Train fresh `weights`, or go on from the checkpoint, and return the averaged weights."""
    optimiser = Optimiser(weights)
    averaged = weights
    start = 0
    if checkpoint.exists():
        weights, averaged, optimiser.state, start = _load(checkpoint)
    batches = Batches(
        tokenizer, plan.seed, tokens=plan.tokens, copy_steps=plan.copy_steps, mix=plan.mix
    )
    with Progress(*Progress.get_default_columns(), console=console) as progress:
        task = progress.add_task(plan.name, total=plan.steps, completed=start)
        recent = 0.0
        for step in range(start, plan.steps):
            mean, gradients = _gradients(weights, loss, batches, step)
            share = rate_at(step, plan.steps)
            weights = optimiser.update(
                weights,
                gradients,
                step=step,
                matrix_rate=plan.matrix_rate * share,
                rate=plan.rate * share,
            )
            keep = min(_AVERAGING, (step + 1) / (step + 10))
            averaged = tree_map(lambda a, w, k=keep: k * a + (1 - k) * w, averaged, weights)
            mx.eval(weights, averaged, optimiser.state, mean)
            now = float(mean)
            recent = now if step == start else 0.98 * recent + 0.02 * now
            progress.update(task, advance=1, description=f"{plan.name} loss {recent:.3f}")
            done = step + 1
            if done % _SAVE_EVERY == 0 or done == plan.steps:
                _save(checkpoint, weights, averaged, optimiser.state, done)
                if not console.is_terminal:
                    console.print(f"{plan.name} step {done}/{plan.steps} loss {recent:.4f}")
    return averaged


def _gradients(
    weights: Weights, loss: Loss, batches: Batches, step: int
) -> tuple[mx.array, Weights]:
    """Mean loss and clipped gradient of one step, over all parts."""
    total, count = mx.array(0.0), 0
    summed: dict[str, mx.array] = {}
    for index in range(PARTS):
        batch = batches.part(step, index)
        value, grads = mx.value_and_grad(loss)(weights, batch)
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


def averaged_weights(checkpoint: Path) -> Weights:
    """The averaged weights of a checkpoint."""
    return _load(checkpoint)[1]


def _save(
    path: Path, weights: Weights, averaged: Weights, state: dict[str, mx.array], step: int
) -> None:
    arrays = {f"weights.{name}": array for name, array in flatten(weights).items()}
    arrays |= {f"averaged.{name}": array for name, array in flatten(averaged).items()}
    arrays |= {f"state.{name}": array for name, array in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name("partial-" + path.name)
    mx.save_safetensors(str(partial), arrays, {"step": str(step)})
    partial.replace(path)


def _load(path: Path) -> tuple[Weights, Weights, dict[str, mx.array], int]:
    loaded: Any = mx.load(str(path), return_metadata=True)
    arrays, metadata = loaded
    groups: dict[str, list[tuple[str, mx.array]]] = {"weights": [], "averaged": [], "state": []}
    for name, array in arrays.items():
        group, _, rest = name.partition(".")
        groups[group].append((rest, array))
    return (
        tree_unflatten(groups["weights"]),
        tree_unflatten(groups["averaged"]),
        dict(groups["state"]),
        int(metadata["step"]),
    )


# ---- the optimiser -----------------------------------------------------------------------------


def flatten(tree: Weights) -> dict[str, mx.array]:
    """The arrays of a tree by their dotted names."""
    return dict(cast("list[tuple[str, mx.array]]", tree_flatten(tree)))


class Optimiser:
    """Updates a tree of weights. `state` is flat and goes into checkpoints as it is."""

    def __init__(self, weights: Weights) -> None:
        flat = flatten(weights)
        self._matrices = [name for name in flat if ".layers." in name and flat[name].ndim == 2]
        self._others = [name for name in flat if name not in set(self._matrices)]
        self.state: dict[str, mx.array] = {}
        kept = [("momentum", name) for name in self._matrices]
        kept += [(kind, name) for name in self._others for kind in ("first", "second")]
        for kind, name in kept:
            self.state[f"{kind}.{name}"] = mx.zeros_like(flat[name])

    def update(
        self, weights: Weights, gradients: Weights, *, step: int, matrix_rate: float, rate: float
    ) -> Weights:
        """The weights after this step (counted from 0)."""
        flat = flatten(weights)
        grads = flatten(gradients)
        for name in self._matrices:
            momentum = _MOMENTUM * self.state[f"momentum.{name}"] + grads[name]
            self.state[f"momentum.{name}"] = momentum
            change = orthogonalise(grads[name] + _MOMENTUM * momentum)
            scale = max(1.0, change.shape[0] / change.shape[1]) ** 0.5
            flat[name] = flat[name] * (1 - 0.05 * matrix_rate) - matrix_rate * scale * change
        first, second = _BETAS
        for name in self._others:
            grad = grads[name]
            mean = first * self.state[f"first.{name}"] + (1 - first) * grad
            square = second * self.state[f"second.{name}"] + (1 - second) * grad * grad
            self.state[f"first.{name}"] = mean
            self.state[f"second.{name}"] = square
            mean = mean / (1 - first ** (step + 1))
            square = square / (1 - second ** (step + 1))
            flat[name] = flat[name] - rate * mean / (mx.sqrt(square) + 1e-8)
        tree: Weights = tree_unflatten(list(flat.items()))
        return tree


def orthogonalise(matrix: mx.array) -> mx.array:
    """About the nearest matrix with orthogonal rows or columns, by five Newton-Schulz steps."""
    a, b, c = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (mx.sqrt((x * x).sum()) + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.T if tall else x
