"""Muon for the matrices, AdamW for the rest.

Owns the update rules and their state. Source of Muon and its coefficients: Keller Jordan et al.,
2024.
"""

from typing import Any, Final, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

Weights = dict[str, Any]

_MOMENTUM: Final = 0.95
_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
_BETAS: Final = (0.9, 0.97)


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
        for name in self._matrices:
            self.state[f"momentum.{name}"] = mx.zeros_like(flat[name])
        for name in self._others:
            self.state[f"first.{name}"] = mx.zeros_like(flat[name])
            self.state[f"second.{name}"] = mx.zeros_like(flat[name])

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
