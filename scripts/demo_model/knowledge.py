"""What the model knows: facts, facts about itself, greetings, and sums worked out in its thinking.

Each kind of fact in ``texts/facts.json`` has phrasings for training and others only for the exam;
the facts themselves are in both, since they can only be memorised. The questions of small talk and
its few fixed answers are in ``texts/talk.json``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

from demo_model.chat import Dialogue, Message, asked, at_times
from demo_model.drawing import of_side, read

_TEXTS: Final[dict[str, Any]] = read("facts")
_TALK: Final[dict[str, Any]] = read("talk")
OPENINGS: Final[list[str]] = _TEXTS["openings"]
SHORT_SYSTEMS: Final[list[str]] = _TEXTS["short_systems"]
PLAIN_SYSTEMS: Final[list[str]] = _TEXTS["plain_systems"]


class Fact(NamedTuple):
    """One fact: the values for a phrasing, the full answer, a one-word answer, and a thought."""

    fields: dict[str, str]
    answer: str
    word: str
    thought: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fact with its phrasings (``unseen``: for the exam); ``weight``: its share."""

    name: str
    weight: float
    phrasings: list[str]
    unseen: list[str]
    facts: list[Fact]


def _kind(told: dict[str, Any]) -> Kind:
    rows = [dict(zip(told["fields"], row, strict=True)) for row in told["rows"]]
    facts = [
        Fact(row, *(told[name].format(**row) for name in ("answer", "word", "thought")))
        for row in rows
    ]
    return Kind(told["name"], told["weight"], told["phrasings"], told["unseen"], facts)


KINDS: Final = [_kind(told) for told in _TEXTS["kinds"]]
_WEIGHTS: Final = [kind.weight for kind in KINDS]
_LAST_LEARNT: Final = [
    next(kind for kind in KINDS if kind.name == name)
    for name in ("sums", "differences", "months after", "months before", "opposites")
]
_ALL: Final = [(kind, fact) for kind in KINDS for fact in kind.facts]


# ---- facts -------------------------------------------------------------------------------------


def fact(rng: Random) -> Dialogue:
    """One question in a phrasing for training."""
    kind = rng.choices(KINDS, _WEIGHTS)[0]
    return _ask(rng, rng.choice(kind.facts), kind)


def fact_evenly(rng: Random) -> Dialogue:
    """One question, with all facts equally likely."""
    kind, fact = rng.choice(_ALL)
    return _ask(rng, fact, kind)


def drill(rng: Random) -> Dialogue:
    """One question of a kind that is learnt last."""
    kind = rng.choices(_LAST_LEARNT, (4.0, 3.0, 1.5, 1.5, 1.0))[0]
    return _ask(rng, rng.choice(kind.facts), kind)


def two_facts(rng: Random) -> Dialogue:
    """Two questions, the first already answered: a conversation with a history."""
    first, second = fact(rng), fact(rng)
    earlier = next(m for m in first.messages if m.role == "user")
    later = next(m for m in second.messages if m.role == "user")
    system = [m for m in second.messages if m.role == "system"]
    history = [*system, earlier, Message("assistant", first.answer), later]
    return Dialogue(history, second.answer, second.thought)


def statements(rng: Random) -> str:
    """A few facts as plain text."""
    count = rng.randint(1, 3)
    facts = (rng.choice(rng.choices(KINDS, _WEIGHTS)[0].facts) for _ in range(count))
    return " ".join(fact.answer for fact in facts)


def fact_exam(rng: Random, kind: Kind) -> Dialogue:
    """One question in a phrasing that training never shows; half of them with a known opening."""
    fact = rng.choice(kind.facts)
    question = rng.choice(kind.unseen).format(**fact.fields)
    if rng.random() < 0.5:
        question = rng.choice(OPENINGS) + question
    return asked(question, fact.answer)


def short_fact_exam(rng: Random) -> Dialogue:
    """One question that should be answered in one word."""
    kind = rng.choice([one for one in KINDS if one.name in ("capitals", "opposites")])
    fact = rng.choice(kind.facts)
    question = rng.choice(kind.unseen).format(**fact.fields)
    return asked(question, fact.word, system=rng.choice(SHORT_SYSTEMS))


def _ask(rng: Random, fact: Fact, kind: Kind) -> Dialogue:
    question = rng.choice(kind.phrasings).format(**fact.fields)
    if rng.random() < 0.45:
        question = rng.choice(OPENINGS) + question
    if rng.random() < 0.08:  # as typed in a hurry
        change: Callable[[str], str] = rng.choice(
            (lambda q: q.rstrip("?."), lambda q: q + " Thanks!", lambda q: q + " Please.")
        )
        question = change(question)
    answer, system, draw = fact.answer, None, rng.random()
    if draw < 0.06:
        system, answer = rng.choice(SHORT_SYSTEMS), fact.word
    elif draw < 0.16:
        system = rng.choice(PLAIN_SYSTEMS)
    return asked(question, answer, at_times(rng, 0.15, fact.thought), system=system)


# ---- small talk --------------------------------------------------------------------------------


def small_talk(rng: Random) -> Dialogue:
    """A question about the model, a greeting, or counting."""
    draw = rng.random()
    if draw < 0.45:
        question, answer = rng.choice(_TALK["who"]), _TALK["identity"]
    elif draw < 0.85:
        questions, answer = rng.choice(_TALK["talk"])
        question = rng.choice(questions)
        if not answer:
            answer = _TALK["greetings"]["Chinese" if "Chinese" in question else "French"]
    else:
        last = rng.randint(2, 20)
        question = rng.choice(_TALK["count"]).format(last)
        answer = ", ".join(str(n) for n in range(1, last + 1)) + "."
    return asked(question, answer, at_times(rng, 0.15, "This is a simple one."))


def identity_exam(rng: Random) -> Dialogue:
    return asked(rng.choice(_TALK["who_unseen"]), _TALK["identity"])


def worked_sum(rng: Random, *, for_exam: bool = False) -> Dialogue:
    """A two-digit sum, worked out in the thinking by column addition from the right."""
    a, b = of_side(
        for_exam,
        lambda: (rng.randint(10, 99), rng.randint(10, 99)),
        lambda pair: (f"{pair[0]}+{pair[1]}",),
    )
    question = rng.choice(_TALK["sum_questions"]).format(a, b)
    ones = a % 10 + b % 10
    carry = ones // 10
    tens = a // 10 + b // 10 + carry
    thought = (
        f"{a % 10} + {b % 10} = {ones}, carry {carry}.\n{a // 10} + {b // 10} + {carry} = {tens}."
    )
    return asked(question, f"{a} + {b} = {a + b}.", thought)
