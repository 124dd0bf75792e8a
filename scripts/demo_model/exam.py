"""The exam: how much the demo model gets right on prompts that training never shows.

Owns the tasks, their questions and the judging of answers. mlx-lm decodes, greedily and in batches.
The questions are a pure function of (task, number of prompts).
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from mlx_lm import load
from mlx_lm.generate import batch_generate
from rich.console import Console
from rich.progress import track

from demo_model import forms, knowledge, texts
from demo_model.chat import Dialogue
from demo_model.drawing import Source

_BATCH: Final = 50


class Question(NamedTuple):
    """A prompt as text, and a function that judges the answer."""

    prompt: str
    max_tokens: int
    judge: Callable[[str], bool]


class Task(NamedTuple):
    """A named task; ``wanted`` is the target share of right answers."""

    name: str
    ask: Callable[[Random], Question]
    wanted: float | None = None


def _exact(dialogue: Dialogue, max_tokens: int) -> Question:
    expected = dialogue.reply()
    return Question(dialogue.prompt(), max_tokens, lambda text: text.strip() == expected)


def _facts(name: str, *names: str) -> Task:
    kinds = [kind for kind in knowledge.KINDS if kind.name in names]

    def ask(rng: Random) -> Question:
        return _exact(knowledge.fact_exam(rng, rng.choice(kinds)), 48)

    return Task(f"facts: {name}", ask, 0.9)


def _thought_facts(rng: Random) -> Question:
    dialogue = knowledge.fact_exam(rng, rng.choice(knowledge.KINDS))
    prompt = Dialogue(dialogue.messages, dialogue.answer, thought="").prompt()
    end = f"</think>\n\n{dialogue.answer}"
    return Question(prompt, 96, lambda text: text[:7] == "<think>" and text.strip().endswith(end))


def _records(source: Source) -> Callable[[Random], Question]:
    def ask(rng: Random) -> Question:
        dialogue, record = forms.record_exam(rng, rng.choice(forms.SHAPES), source)
        return Question(dialogue.prompt(), 96, lambda text: parsed(text) == record)

    return ask


def _listed_keys(rng: Random) -> Question:
    shape = rng.choice(forms.SHAPES)
    return _exact(forms.record_exam(rng, shape, forms.KNOWN, lists_keys=True)[0], 96)


def _tool_calls(rng: Random) -> Question:
    skill = rng.choice(forms.SKILLS)
    dialogue, arguments = forms.tool_call_exam(rng, skill)
    call = {"name": skill.name, "arguments": arguments}

    def judge(text: str) -> bool:
        begun, inside = text.strip().partition("<tool_call>")[::2]
        inside, end, behind = inside.partition("</tool_call>")
        return bool(end) and not begun + behind and parsed(inside) == call

    return Question(dialogue.prompt(), 96, judge)


def _identity(rng: Random) -> Question:
    prompt = knowledge.identity_exam(rng).prompt()
    return Question(prompt, 64, lambda text: "demo model" in text)


def _story(rng: Random) -> Question:
    """A story is right if it ends by itself and names its hero."""
    lines = texts.sentences(rng, roles := texts.cast(rng))
    return Question(
        lines[0], 250, lambda text: roles["hero"] in text and text.strip()[-1:] in '.!"😊🌙⭐'
    )


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


TASKS: Final = (
    _facts("capitals, both ways", "capitals", "countries"),
    _facts("elements, three ways", "element symbols", "element numbers", "elements by symbol"),
    _facts("months and days", "months after", "months before", "days of a month"),
    _facts("opposites", "opposites"),
    _facts("small sums", "sums", "differences"),
    _facts("emoji", "emoji"),
    _facts("foreign words", "foreign words"),
    Task(
        "facts, in one word by system prompt",
        lambda rng: _exact(knowledge.short_fact_exam(rng), 24),
    ),
    Task("facts, thinking first", _thought_facts),
    Task(
        "two-digit sums, thinking first",
        lambda rng: _exact(knowledge.worked_sum(rng, for_exam=True), 80),
    ),
    Task("records, unseen combinations", _records(forms.KNOWN), 0.93),
    Task("records, unseen names and cities", _records(forms.UNSEEN), 0.8),
    Task("records, made-up names and cities", _records(forms.MADE_UP)),
    Task("records, with the keys listed", _listed_keys),
    Task("tool calls, unseen combinations", _tool_calls, 0.93),
    Task("copying 20 words", lambda rng: _exact(texts.copy_exam(rng), 64), 0.85),
    Task("says that it is a demo model", _identity),
    Task("raw stories that end with their hero", _story),
)


def questions(task: Task, count: int) -> list[Question]:
    rng = Random(f"exam/{task.name}")
    return [task.ask(rng) for _ in range(count)]


def answers(model: Any, tokenizer: Any, asked: Sequence[Question]) -> list[str]:
    """Greedy answers to all questions."""
    result: list[str] = []
    for start in range(0, len(asked), _BATCH):
        group = asked[start : start + _BATCH]
        response = batch_generate(
            model,
            tokenizer,
            [tokenizer.encode(one.prompt, add_special_tokens=False) for one in group],
            max_tokens=[one.max_tokens for one in group],
            completion_batch_size=_BATCH,
            prefill_batch_size=_BATCH,
        )
        result += response.texts
    return result


def run(folder: Path, count: int, console: Console, *, show_wrong: bool = False) -> int:
    """Measure every task and print a table for the demo model's README."""
    model, tokenizer = load(str(folder / "model"))[:2]
    rows = ["| task | wanted | right |", "|---|---:|---:|"]
    facts: list[bool] = []
    for task in track(TASKS, "exam", console=console, transient=True):
        asked = questions(task, count)
        given = answers(model, tokenizer, asked)
        right = [one.judge(text) for one, text in zip(asked, given, strict=True)]
        facts += right if task.name.startswith("facts:") else []
        rows.append(_row(task.name, task.wanted, right))
        answered = zip(asked, given, right, strict=True)
        wrong = [(one, text) for one, text, good in answered if not good]
        for one, text in wrong[: 4 * show_wrong]:
            console.out(f"{one.prompt!r}\n    {text!r}", highlight=False)
    rows.append(_row("all facts", 0.9, facts))
    console.out("\n".join(rows), highlight=False)
    return 0


def _row(name: str, wanted: float | None, right: Sequence[bool]) -> str:
    least = "-" if wanted is None else f"{wanted:.0%}"
    return f"| {name} | {least} | {sum(right) / len(right):.0%} |"
