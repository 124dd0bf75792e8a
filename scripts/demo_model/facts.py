"""Questions of fact and their answers.

Owns the fixed list of facts and the phrasings of the questions. Each kind of fact has phrasings for
training and others for the exam only; a fact itself is in both, as it can only be remembered.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from demo_model import words
from demo_model.chat import Dialogue, Message

OPENINGS: Final = (
    "Please tell me: ",
    "Quick question: ",
    "A question for you: ",
    "Hello! ",
    "Hi, ",
    "I wonder: ",
    "Tell me, ",
    "Please answer: ",
    "My question: ",
    "Just checking: ",
    "Help me please. ",
    "For a quiz: ",
)
SHORT_SYSTEMS: Final = ("Answer with one word.", "Answer in one word only.", "Be very short.")
PLAIN_SYSTEMS: Final = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You are a demo model.",
    "Be kind and answer the question.",
    "Answer the user.",
    "You help people with short and correct answers.",
)


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
    facts: tuple[Fact, ...]
    phrasings: tuple[str, ...]
    unseen: tuple[str, ...]
    weight: float


def _facts(
    rows: list[dict[str, str]], answer: str, word: str, thought: str, article: bool = False
) -> tuple[Fact, ...]:
    facts = []
    for row in rows:
        if article:
            row = row | {"a": "an" if row["x"][0] in "aeiou" else "a"}
        facts.append(Fact(row, answer.format(**row), word.format(**row), thought.format(**row)))
    return tuple(facts)


def _capitals() -> list[Kind]:
    rows = [{"x": country, "y": city} for country, city in words.CAPITALS.items()]
    return [
        Kind(
            "capitals",
            _facts(
                rows, "The capital of {x} is {y}.", "{y}", "This is about {x}. Its capital is {y}."
            ),
            (
                "What is the capital of {x}?",
                "What's the capital of {x}?",
                "Which city is the capital of {x}?",
                "Name the capital of {x}.",
                "Tell me the capital of {x}.",
                "Do you know the capital of {x}?",
                "{x}: what is its capital?",
                "The capital of {x} is which city?",
                "Give me the capital city of {x}.",
                "What city is the capital of {x}?",
                "I need the capital of {x}.",
                "capital of {x}",
                "What is the capital city of {x}?",
                "Which capital does {x} have?",
                "What would you say is the capital of {x}?",
                "Can you tell me which city is the capital of {x}?",
                "I would like to know which capital {x} has.",
            ),
            (
                "Can you name the capital city of {x}?",
                "Which city does {x} have as its capital?",
                "I would like to know the capital of {x}.",
                "Do you know which city is the capital of {x}?",
            ),
            3.0,
        ),
        Kind(
            "countries",
            _facts(
                rows,
                "{y} is the capital of {x}.",
                "{x}",
                "This is about {y}. It is the capital of {x}.",
            ),
            (
                "{y} is the capital of which country?",
                "Which country has the capital {y}?",
                "Of which country is {y} the capital?",
                "What country has {y} as its capital?",
                "Name the country whose capital is {y}.",
                "Tell me the country that has the capital {y}.",
                "Do you know the country with the capital {y}?",
                "{y}: it is the capital of what country?",
            ),
            ("Which country has {y} as its capital?", "Tell me the country whose capital is {y}."),
            1.5,
        ),
    ]


def _elements() -> list[Kind]:
    rows = [
        {"x": name, "y": symbol, "n": str(number)}
        for name, (symbol, number) in words.ELEMENTS.items()
    ]
    return [
        Kind(
            "element symbols",
            _facts(
                rows, "The symbol for {x} is {y}.", "{y}", "This is about {x}. Its symbol is {y}."
            ),
            (
                "What is the chemical symbol for {x}?",
                "What is the symbol for {x}?",
                "What is the symbol of {x}?",
                "What's the symbol for {x}?",
                "Which symbol does {x} have?",
                "Name the chemical symbol for {x}.",
                "Tell me the symbol of {x}.",
                "Give me the symbol for the element {x}.",
                "Do you know the chemical symbol of {x}?",
                "{x}: what is its symbol?",
                "symbol for {x}",
                "How do chemists write {x}?",
                "What symbol stands for {x}?",
                "I need the chemical symbol of the element {x}.",
                "Which letters stand for {x}?",
            ),
            (
                "What is the symbol for the element {x}?",
                "Can you tell me the chemical symbol of {x}?",
                "Which chemical symbol stands for {x}?",
            ),
            2.5,
        ),
        Kind(
            "element numbers",
            _facts(
                rows,
                "The atomic number of {x} is {n}.",
                "{n}",
                "This is about {x}. Its atomic number is {n}.",
            ),
            (
                "What is the atomic number of {x}?",
                "What's the atomic number of {x}?",
                "Which atomic number does {x} have?",
                "Tell me the atomic number of {x}.",
                "Give me the atomic number of the element {x}.",
                "Name the atomic number of {x}.",
                "Do you know the atomic number of {x}?",
                "{x}: what is its atomic number?",
                "atomic number of {x}",
                "What number does the element {x} have?",
                "How many protons does {x} have?",
                "I need the atomic number of {x}.",
            ),
            (
                "What is the atomic number of the element {x}?",
                "Can you tell me the atomic number of {x}?",
                "Which number does the element {x} have?",
            ),
            2.5,
        ),
        Kind(
            "elements by symbol",
            _facts(
                rows, "{y} is the symbol for {x}.", "{x}", "This is about {y}. It stands for {x}."
            ),
            (
                "Which element has the symbol {y}?",
                "What element has the symbol {y}?",
                "Which element is written {y}?",
                "The symbol {y} stands for which element?",
                "Name the element with the symbol {y}.",
                "Tell me the element that has the symbol {y}.",
                "What does the symbol {y} stand for?",
                "Give me the element with the chemical symbol {y}.",
                "Do you know which element is written {y}?",
            ),
            (
                "Which element has the chemical symbol {y}?",
                "What element does the symbol {y} stand for?",
            ),
            2.0,
        ),
    ]


def _calendar() -> list[Kind]:
    months = list(words.MONTHS)
    after = [{"x": m, "y": months[(i + 1) % 12]} for i, m in enumerate(months)]
    after += [{"x": d, "y": words.DAYS[(i + 1) % 7]} for i, d in enumerate(words.DAYS)]
    before = [{"x": row["y"], "y": row["x"]} for row in after]
    lengths = [{"x": month, "n": str(days)} for month, days in words.MONTHS.items()]
    return [
        Kind(
            "months after",
            _facts(after, "{y} comes after {x}.", "{y}", "This is about {x}. Then comes {y}."),
            (
                "What comes after {x}?",
                "What comes right after {x}?",
                "Which one comes after {x}?",
                "What follows {x}?",
                "Tell me what comes after {x}.",
                "Name the one after {x}.",
                "What is next after {x}?",
                "after {x} comes what?",
                "In the calendar, what follows {x}?",
                "Do you know what is next after {x}?",
            ),
            ("Do you know what comes after {x}?", "In the calendar, what comes after {x}?"),
            1.0,
        ),
        Kind(
            "months before",
            _facts(before, "{y} comes before {x}.", "{y}", "This is about {x}. Before it is {y}."),
            (
                "What comes before {x}?",
                "What comes right before {x}?",
                "Which one comes before {x}?",
                "Tell me what comes before {x}.",
                "Name the one before {x}.",
                "What is just before {x}?",
                "before {x} comes what?",
                "In the calendar, what is before {x}?",
                "Do you know what is before {x}?",
            ),
            ("Do you know what comes before {x}?", "In the calendar, what comes before {x}?"),
            1.0,
        ),
        Kind(
            "days of a month",
            _facts(lengths, "{x} has {n} days.", "{n}", "This is about {x}. It has {n} days."),
            (
                "How many days does {x} have?",
                "How many days are in {x}?",
                "How many days are there in {x}?",
                "Tell me how many days {x} has.",
                "What is the number of days in {x}?",
                "{x} has how many days?",
                "Do you know how many days {x} has?",
                "How long is {x} in days?",
            ),
            ("Tell me how many days are in {x}.", "Do you know how many days are in {x}?"),
            0.6,
        ),
    ]


def _opposites() -> list[Kind]:
    rows = [{"x": a, "y": b} for a, b in words.OPPOSITES]
    rows += [{"x": b, "y": a} for a, b in words.OPPOSITES]
    return [
        Kind(
            "opposites",
            _facts(rows, "The opposite of {x} is {y}.", "{y}", "This is about {x}. It is not {y}."),
            (
                "What is the opposite of {x}?",
                "What's the opposite of {x}?",
                "Tell me the opposite of {x}.",
                "Name the opposite of {x}.",
                "Give me the opposite of {x}.",
                "Which word is the opposite of {x}?",
                "Do you know the opposite of {x}?",
                "opposite of {x}",
                "What is the opposite of the word {x}?",
                "What word means the opposite of {x}?",
                "I need the opposite of {x}.",
            ),
            (
                "Which word means the opposite of {x}?",
                "Can you tell me the opposite of {x}?",
                "I would like to know the opposite of {x}.",
            ),
            2.0,
        )
    ]


def _sums() -> list[Kind]:
    plus = [{"x": str(a), "z": str(b), "y": str(a + b)} for a in range(10) for b in range(10)]
    minus = [{"x": str(a), "z": str(b), "y": str(a - b)} for a in range(11) for b in range(a + 1)]
    return [
        Kind(
            "sums",
            _facts(plus, "{x} + {z} = {y}.", "{y}", "I add {x} and {z}. That makes {y}."),
            (
                "What is {x} + {z}?",
                "What's {x} + {z}?",
                "{x} + {z}",
                "{x} + {z} = ?",
                "How much is {x} + {z}?",
                "What is {x} plus {z}?",
                "How much is {x} plus {z}?",
                "Add {x} and {z}.",
                "Tell me the sum of {x} and {z}.",
                "What is the sum of {x} and {z}?",
                "Calculate {x} + {z}.",
                "Please add {x} to {z}.",
                "What do you get for {x} + {z}?",
            ),
            (
                "Calculate {x} plus {z}.",
                "Tell me how much {x} + {z} is.",
                "What do you get for {x} plus {z}?",
            ),
            2.5,
        ),
        Kind(
            "differences",
            _facts(minus, "{x} - {z} = {y}.", "{y}", "I take {z} from {x}. That leaves {y}."),
            (
                "What is {x} - {z}?",
                "What's {x} - {z}?",
                "{x} - {z}",
                "{x} - {z} = ?",
                "How much is {x} - {z}?",
                "What is {x} minus {z}?",
                "How much is {x} minus {z}?",
                "Take {z} from {x}.",
                "Calculate {x} - {z}.",
                "What do you get for {x} - {z}?",
            ),
            ("Calculate {x} minus {z}.", "What do you get for {x} minus {z}?"),
            1.5,
        ),
    ]


def _signs() -> list[Kind]:
    emoji = [{"x": name, "y": sign} for name, sign in words.EMOJI.items()]
    foreign = [
        {"x": word, "y": text, "l": language}
        for language, table in words.LANGUAGES.items()
        for word, text in table.items()
    ]
    return [
        Kind(
            "emoji",
            _facts(
                emoji,
                "Here is {a} {x}: {y}",
                "{y}",
                "This is about an emoji for {x}.",
                article=True,
            ),
            (
                "Which emoji shows {a} {x}?",
                "Show me {a} {x} emoji.",
                "What is the emoji for {x}?",
                "Give me the emoji for {a} {x}.",
                "Send me {a} {x} emoji please.",
                "emoji for {x}",
                "Draw {a} {x}.",
                "I need the emoji for {x}.",
                "Do you have an emoji for {a} {x}?",
                "Show {a} {x} as an emoji.",
            ),
            (
                "Give me {a} {x} emoji.",
                "What is the emoji for {a} {x}?",
                "Do you have {a} {x} emoji?",
            ),
            1.5,
        ),
        Kind(
            "foreign words",
            _facts(
                foreign,
                "The {l} word for {x} is {y}.",
                "{y}",
                "This is about {x} in {l}. I write {y}.",
            ),
            (
                "What is the {l} word for {x}?",
                "How do you say {x} in {l}?",
                "What is {x} in {l}?",
                "Say {x} in {l}.",
                "Tell me the {l} word for {x}.",
                "Translate {x} into {l}.",
                "How do you write {x} in {l}?",
                "{x} in {l}",
                "Give me the {l} for {x}.",
                "Do you know the {l} word for {x}?",
                "I need the word {x} in {l}.",
            ),
            (
                "Give me the {l} word for {x}.",
                "Do you know how you say {x} in {l}?",
                "Write {x} in {l}.",
            ),
            2.5,
        ),
    ]


KINDS: Final = tuple(
    kind
    for build in (_capitals, _elements, _calendar, _opposites, _sums, _signs)
    for kind in build()
)
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


def is_unseen(question: str) -> bool:
    """Whether a question is one that only the exam may ask."""
    return any(question.endswith(phrase) for phrase in _unseen_questions())


def _unseen_questions() -> tuple[str, ...]:
    return tuple(
        phrase.format(**fact.fields)
        for kind in KINDS
        for fact in kind.facts
        for phrase in kind.unseen
    )


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
