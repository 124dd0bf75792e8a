"""Questions of fact and their answers, as `texts/facts.json` lists them.

Each kind of fact has phrasings for training and others for the exam only; a fact itself is in both,
as it can only be remembered.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from demo_model.chat import Dialogue, Message
from demo_model.drawing import read

_TEXTS: Final[dict[str, Any]] = read("facts")
OPENINGS: Final[list[str]] = _TEXTS["openings"]
SHORT_SYSTEMS: Final[list[str]] = _TEXTS["short_systems"]
PLAIN_SYSTEMS: Final[list[str]] = _TEXTS["plain_systems"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact: what fills the phrasing, the full answer, and the answer in one word."""

    fields: dict[str, str]
    answer: str
    word: str
    thought: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fact with its phrasings; `weight` is its share among the facts."""

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


def training(rng: Random) -> Dialogue:
    """One question in a phrasing of the training side."""
    kind = rng.choices(KINDS, _WEIGHTS)[0]
    fact = rng.choice(kind.facts)
    return _ask(rng, fact, rng.choice(kind.phrasings))


def training_evenly(rng: Random) -> Dialogue:
    """One question, where every fact is as likely as any other."""
    kind, fact = rng.choice(_ALL)
    return _ask(rng, fact, rng.choice(kind.phrasings))


def training_drill(rng: Random) -> Dialogue:
    """One question of the kinds that are learnt last."""
    kind = rng.choices(_LAST_LEARNT, (4.0, 3.0, 1.5, 1.5, 1.0))[0]
    return _ask(rng, rng.choice(kind.facts), rng.choice(kind.phrasings))


def training_pair(rng: Random) -> Dialogue:
    """Two questions, the first one answered: a conversation with a history."""
    first = training(rng)
    second = training(rng)
    earlier = [m for m in first.messages if m.role == "user"][-1]
    later = [m for m in second.messages if m.role == "user"][-1]
    system = [m for m in second.messages if m.role == "system"]
    history = (*system, earlier, Message("assistant", first.answer), later)
    return Dialogue(history, second.answer, second.thought)


def raw_statement(rng: Random) -> str:
    """A few facts as plain text."""
    count = rng.randint(1, 3)
    facts = (rng.choice(rng.choices(KINDS, _WEIGHTS)[0].facts) for _ in range(count))
    return " ".join(fact.answer for fact in facts)


def exam(rng: Random, kind: Kind) -> Dialogue:
    """One question in a phrasing that training never shows; one in two with a known opening."""
    fact = rng.choice(kind.facts)
    question = rng.choice(kind.unseen).format(**fact.fields)
    if rng.random() < 0.5:
        question = rng.choice(OPENINGS) + question
    return Dialogue((Message("user", question),), fact.answer)


def _ask(rng: Random, fact: Fact, phrasing: str) -> Dialogue:
    question = phrasing.format(**fact.fields)
    if rng.random() < 0.45:
        question = rng.choice(OPENINGS) + question
    if rng.random() < 0.08:
        question = _vary(rng, question)
    messages = [Message("user", question)]
    answer = fact.answer
    draw = rng.random()
    if draw < 0.06:
        messages.insert(0, Message("system", rng.choice(SHORT_SYSTEMS)))
        answer = fact.word
    elif draw < 0.16:
        messages.insert(0, Message("system", rng.choice(PLAIN_SYSTEMS)))
    thought = fact.thought if rng.random() < 0.15 else None
    return Dialogue(tuple(messages), answer, thought)


def _vary(rng: Random, question: str) -> str:
    """The question as somebody in a hurry types it."""
    change: Callable[[str], str] = rng.choice(
        (lambda q: q.rstrip("?."), lambda q: q + " Thanks!", lambda q: q + " Please.")
    )
    return change(question)
