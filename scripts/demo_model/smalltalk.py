"""What the model says of itself, greetings, and sums that are worked out by thinking.

The questions and the few fixed answers are in `texts/talk.json`.
"""

from random import Random
from typing import Any, Final

from demo_model.chat import Dialogue, Message
from demo_model.drawing import is_for_exam, read

_TEXTS: Final[dict[str, Any]] = read("talk")


def training(rng: Random) -> Dialogue:
    """A question about the model, a greeting, or counting."""
    draw = rng.random()
    if draw < 0.45:
        question, answer = rng.choice(_TEXTS["who"]), _TEXTS["identity"]
    elif draw < 0.85:
        questions, answer = rng.choice(_TEXTS["talk"])
        question = rng.choice(questions)
        if not answer:
            answer = _TEXTS["greetings"]["Chinese" if "Chinese" in question else "French"]
    else:
        last = rng.randint(2, 20)
        question = rng.choice(_TEXTS["count"]).format(last)
        answer = ", ".join(str(n) for n in range(1, last + 1)) + "."
    thought = "This is a simple one." if rng.random() < 0.15 else None
    return Dialogue((Message("user", question),), answer, thought)


def exam(rng: Random) -> Dialogue:
    return Dialogue((Message("user", rng.choice(_TEXTS["who_unseen"])),), _TEXTS["identity"])


def worked_sum(a: int, b: int) -> str:
    """The written method, from the right, as a thought."""
    ones = a % 10 + b % 10
    carry = ones // 10
    tens = a // 10 + b // 10 + carry
    return (
        f"{a % 10} + {b % 10} = {ones}, carry {carry}.\n{a // 10} + {b // 10} + {carry} = {tens}."
    )


def training_sum(rng: Random) -> Dialogue:
    """A two-digit sum that is thought through."""
    return _sum(rng, for_exam=False)


def exam_sum(rng: Random) -> Dialogue:
    """One that training never shows."""
    return _sum(rng, for_exam=True)


def _sum(rng: Random, *, for_exam: bool) -> Dialogue:
    while True:
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        if is_for_exam(f"{a}+{b}") == for_exam:
            break
    question = rng.choice(_TEXTS["sum_questions"]).format(a, b)
    return Dialogue((Message("user", question),), f"{a} + {b} = {a + b}.", worked_sum(a, b))
