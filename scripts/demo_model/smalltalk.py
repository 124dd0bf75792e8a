"""What the model says of itself, greetings, and sums that are worked out by thinking.

Owns the few fixed answers that show what this model is, and the written method of adding.
"""

import zlib
from random import Random
from typing import Final

from demo_model.chat import Dialogue, Message

IDENTITY: Final = (
    "I am the mlxgen demo model, a very small language model. "
    "I only know a few things. For real work, load a real model."
)
_WHO: Final = (
    "Who are you?",
    "What are you?",
    "Who are you and what can you do?",
    "What is your name?",
    "What's your name?",
    "Tell me about yourself.",
    "Introduce yourself.",
    "Are you a person?",
    "Are you a robot?",
    "Are you a real model?",
    "Are you a demo model?",
    "Which model are you?",
    "What model is this?",
    "What kind of model are you?",
    "Who made you?",
    "who are you",
    "Hello, who are you?",
    "Hi! What are you?",
    "Please tell me who you are.",
    "Are you a language model?",
)
WHO_UNSEEN: Final = (
    "Can you tell me who you are?",
    "What model are you?",
    "Hi, who are you?",
    "Which language model are you?",
    "Please introduce yourself.",
    "Do you know who you are?",
)
_SKILLS: Final = (
    "I can answer questions about capitals, elements, months, opposites and small sums, "
    "write records as JSON, call tools, copy text and tell short stories. I am a demo model."
)
_TALK: Final = (
    (("What can you do?", "How can you help me?", "What do you know?", "Help!"), _SKILLS),
    (
        ("Hello!", "Hello", "Hi!", "Hi", "Hey", "Good morning!", "Hello there!", "hello"),
        "Hello! How can I help you? 😊",
    ),
    (("How are you?", "How are you today?", "Are you well?"), "I am well, thank you! 😊"),
    (("Thank you!", "Thanks!", "Thank you very much.", "thanks"), "You are welcome! 😊"),
    (("Goodbye!", "Bye!", "See you!", "Good night!"), "Goodbye! 👋"),
    (
        ("Say hello in Chinese.", "Say hello in French.", "Greet me in Chinese."),
        "",
    ),
)
_GREETINGS: Final = {"Chinese": "你好! 😊", "French": "Bonjour! Ça va? 😊"}
_COUNT: Final = ("Count to {}.", "Count from 1 to {}.", "Please count to {}.")
_SUM_QUESTIONS: Final = (
    "What is {} + {}?",
    "What's {} + {}?",
    "{} + {}",
    "How much is {} + {}?",
    "What is {} plus {}?",
    "How much is {} plus {}?",
    "Add {} and {}.",
    "Tell me the sum of {} and {}.",
    "Calculate {} + {}.",
)


def training(rng: Random) -> Dialogue:
    """A question about the model, a greeting, or counting."""
    draw = rng.random()
    if draw < 0.45:
        question, answer = rng.choice(_WHO), IDENTITY
    elif draw < 0.85:
        questions, answer = rng.choice(_TALK)
        question = rng.choice(questions)
        if not answer:
            answer = _GREETINGS["Chinese" if "Chinese" in question else "French"]
    else:
        last = rng.randint(2, 20)
        question = rng.choice(_COUNT).format(last)
        answer = ", ".join(str(n) for n in range(1, last + 1)) + "."
    thought = "This is a simple one." if rng.random() < 0.15 else None
    return Dialogue((Message("user", question),), answer, thought)


def exam(rng: Random) -> Dialogue:
    return Dialogue((Message("user", rng.choice(WHO_UNSEEN)),), IDENTITY)


def is_for_exam(a: int, b: int) -> bool:
    """One pair of two-digit numbers in ten belongs to the exam."""
    return zlib.crc32(f"{a}+{b}".encode()) % 10 == 0


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
    while True:
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        if not is_for_exam(a, b):
            return _sum(rng, a, b)


def exam_sum(rng: Random) -> Dialogue:
    while True:
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        if is_for_exam(a, b):
            return _sum(rng, a, b)


def _sum(rng: Random, a: int, b: int) -> Dialogue:
    question = rng.choice(_SUM_QUESTIONS).format(a, b)
    return Dialogue((Message("user", question),), f"{a} + {b} = {a + b}.", worked_sum(a, b))
