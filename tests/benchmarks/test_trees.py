"""What a tree of continuations would bring is reckoned from what would have stood."""

from __future__ import annotations

import random

from benchmarks import trees
from benchmarks.recited import Recital
from benchmarks.simulated import DEVICES, SHAPES
from benchmarks.trees import Node

DEVICE, SHAPE = DEVICES[1], SHAPES[1]
FORK = [Node(0.6, -1, 5), Node(0.3, -1, 7), Node(0.3, 0, 6), Node(0.2, 1, 8)]


def test_what_stands_is_the_path_that_the_text_takes() -> None:
    assert trees.stood(FORK, [5, 6, 9]) == 2
    assert trees.stood(FORK, [7, 8, 6]) == 2
    assert trees.stood(FORK, [5, 8]) == 1
    assert trees.stood(FORK, [6]) == 0
    assert trees.stood(FORK, [7]) == 1


def test_as_many_tokens_are_in_a_tree_as_pay() -> None:
    assert trees.worth(FORK, lambda tokens: 1.0) == FORK
    assert trees.worth(FORK, lambda tokens: 1.0 + (tokens > 2)) == FORK[:1]
    assert trees.worth(FORK, float) == []


def test_a_tree_brings_much_where_either_of_two_tokens_comes_by_chance() -> None:
    chance = random.Random(1)
    prompt, text = ([chance.choice([1, 2]) for _ in range(size)] for size in (400, 200))
    assert trees.gain([Recital(prompt, text)], DEVICE, SHAPE) > 1.3


def test_a_tree_brings_nothing_where_one_run_always_comes() -> None:
    run = list(range(1, 12))
    recital = Recital(run * 6, run * 4)
    assert trees.gain([recital], DEVICE, SHAPE) == 1.0
    plain = sum(SHAPE.seconds(DEVICE, 1, 1, 66 + place) for place in range(44))
    assert trees.seconds([recital], DEVICE, SHAPE, 1) < plain / 3
