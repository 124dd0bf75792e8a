"""The exam: what the demo model gets right on prompts that training never shows.

Owns the tasks, their questions and how an answer is judged. Decoding is greedy, by mlx-lm, in
batches. The questions are a pure function of (task, number of prompts).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.progress import Progress

from demo_model import copying, facts, head, package, records, smalltalk, stories, toolcalls
from demo_model.chat import Dialogue, Message
from demo_model.drawing import Source

_BATCH: Final = 50
_DRAFTED: Final = 3  # tokens that the head drafts at a time


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt as text, and the judge of the answer."""

    prompt: str
    max_tokens: int
    judge: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Task:
    """A named task; `wanted` is the share of right answers that was asked for."""

    name: str
    ask: Callable[[Random], Question]
    wanted: float | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wrote."""

    question: Question
    text: str
    tokens: tuple[int, ...]

    @property
    def is_right(self) -> bool:
        return self.question.judge(self.text)


def _exact(dialogue: Dialogue, max_tokens: int) -> Question:
    expected = dialogue.reply()
    return Question(dialogue.prompt(), max_tokens, lambda text: text.strip() == expected)


def _facts(*names: str) -> Callable[[Random], Question]:
    kinds = [kind for kind in facts.KINDS if kind.name in names]
    return lambda rng: _exact(facts.exam(rng, rng.choice(kinds)), 48)


def _thought_facts(rng: Random) -> Question:
    dialogue = facts.exam(rng, rng.choice(facts.KINDS))
    asked = Dialogue(dialogue.messages, dialogue.answer, thought="")
    end = f"</think>\n\n{dialogue.answer}"
    return Question(
        asked.prompt(),
        96,
        lambda text: text.startswith("<think>") and text.strip().endswith(end),
    )


def _short_facts(rng: Random) -> Question:
    kind = rng.choice([one for one in facts.KINDS if one.name in ("capitals", "opposites")])
    fact = rng.choice(kind.facts)
    question = rng.choice(kind.unseen).format(**fact.fields)
    system = Message("system", rng.choice(facts.SHORT_SYSTEMS))
    return _exact(Dialogue((system, Message("user", question)), fact.word), 24)


def _records(source: Source) -> Callable[[Random], Question]:
    def ask(rng: Random) -> Question:
        dialogue, record = records.exam(rng, rng.choice(records.SHAPES), source)
        return Question(dialogue.prompt(), 96, lambda text: parsed(text) == record)

    return ask


def _listed_keys(rng: Random) -> Question:
    dialogue, _ = records.exam(rng, rng.choice(records.SHAPES), records.KNOWN, lists_keys=True)
    return _exact(dialogue, 96)


def _tool_calls(rng: Random) -> Question:
    skill = rng.choice(toolcalls.SKILLS)
    dialogue, arguments = toolcalls.exam(rng, skill)
    call = {"name": skill.name, "arguments": arguments}
    return Question(dialogue.prompt(), 96, lambda text: _called(text) == call)


def _identity(rng: Random) -> Question:
    dialogue = smalltalk.exam(rng)
    return Question(dialogue.prompt(), 64, lambda text: "demo model" in text)


def _story(rng: Random) -> Question:
    """A story is right if it ends by itself and still names its hero near the end."""
    lines = stories.sentences(rng, roles := stories.cast(rng))
    return Question(
        lines[0], 250, lambda text: roles["hero"] in text and text.strip()[-1:] in '.!"😊🌙⭐'
    )


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _called(text: str) -> Any:
    text = text.strip()
    if not (text.startswith("<tool_call>") and text.endswith("</tool_call>")):
        return None
    return parsed(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))


TASKS: Final = (
    Task("facts: capitals, both ways", _facts("capitals", "countries"), 0.9),
    Task(
        "facts: elements, three ways",
        _facts("element symbols", "element numbers", "elements by symbol"),
        0.9,
    ),
    Task("facts: months and days", _facts("months after", "months before", "days of a month"), 0.9),
    Task("facts: opposites", _facts("opposites"), 0.9),
    Task("facts: small sums", _facts("sums", "differences"), 0.9),
    Task("facts: emoji", _facts("emoji"), 0.9),
    Task("facts: foreign words", _facts("foreign words"), 0.9),
    Task("facts, in one word by system prompt", _short_facts, None),
    Task("facts, thinking first", _thought_facts, None),
    Task("two-digit sums, thinking first", lambda rng: _exact(smalltalk.exam_sum(rng), 80), None),
    Task("records, unseen combinations", _records(records.KNOWN), 0.93),
    Task("records, unseen names and cities", _records(records.UNSEEN), 0.8),
    Task("records, made-up names and cities", _records(records.MADE_UP), None),
    Task("records, with the keys listed", _listed_keys, None),
    Task("tool calls, unseen combinations", _tool_calls, 0.93),
    Task("copying 20 words", lambda rng: _exact(copying.exam(rng), 64), 0.85),
    Task("says that it is a demo model", _identity, None),
    Task("raw stories that end with their hero", _story, None),
)


def questions(task: Task, count: int) -> list[Question]:
    rng = Random(f"exam/{task.name}")
    return [task.ask(rng) for _ in range(count)]


def answers(model: Any, tokenizer: Any, asked: Sequence[Question]) -> list[Answer]:
    """Greedy answers to all questions."""
    from mlx_lm.generate import batch_generate

    result: list[Answer] = []
    for start in range(0, len(asked), _BATCH):
        group = asked[start : start + _BATCH]
        prompts = [tokenizer.encode(one.prompt, add_special_tokens=False) for one in group]
        response = batch_generate(
            model,
            tokenizer,
            prompts,
            max_tokens=[one.max_tokens for one in group],
            return_token_ids=True,
            completion_batch_size=_BATCH,
            prefill_batch_size=_BATCH,
        )
        for one, text, tokens in zip(group, response.texts, response.token_ids, strict=True):
            result.append(Answer(one, text, tuple(tokens)))
    return result


def agreement(draft: Any, tokenizer: Any, given: Sequence[Answer]) -> tuple[int, int]:
    """How many tokens of the answers the draft model would have chosen too, and of how many."""
    import mlx.core as mx

    same = total = 0
    for answer in given:
        prompt = tokenizer.encode(answer.question.prompt, add_special_tokens=False)
        whole = [*prompt, *answer.tokens]
        chosen = mx.argmax(draft(mx.array(whole)[None, :-1])[0, len(prompt) - 1 :], axis=-1)
        same += int(np.sum(np.array(chosen) == np.array(answer.tokens)))
        total += len(answer.tokens)
    return same, total


def passes(trunk: Any, weights: Any, tokenizer: Any, given: Sequence[Answer]) -> float:
    """Passes of the main model for each token of the answers, with three drafted by its head."""
    total = count = 0
    for answer in given:
        prompt = tokenizer.encode(answer.question.prompt, add_special_tokens=False)
        agreed = head.agreement(trunk, weights, [*prompt, *answer.tokens])
        # The first token comes of the prompt's own pass; the last one is followed by the end.
        agreed = agreed[:, len(prompt) :]
        total += head.passes(agreed, _DRAFTED)
        count += agreed.shape[1]
    return total / max(count, 1)


def run(folder: Path, count: int, console: Console, *, show_wrong: bool = False) -> int:
    """Measure every task and print a table that can go into the README as it is."""
    from mlx_lm import load

    model, tokenizer = load(str(folder / "model"))[:2]
    draft = load(str(folder / "draft"))[0] if (folder / "draft").exists() else None
    trunk = package.weights(folder / "model")
    weights = package.head(folder / "model") if (folder / "model" / package.HEAD).exists() else None
    rows = [
        "| task | wanted | right | draft agrees | passes a token |",
        "|---|---:|---:|---:|---:|",
    ]
    facts_right = facts_asked = 0
    with Progress(console=console, transient=True) as progress:
        for task in progress.track(TASKS, description="exam"):
            given = answers(model, tokenizer, questions(task, count))
            right = sum(answer.is_right for answer in given)
            if task.name.startswith("facts:"):
                facts_right += right
                facts_asked += len(given)
            agrees = "-"
            if draft is not None:
                same, total = agreement(draft, tokenizer, given[:30])
                agrees = f"{same / max(total, 1):.0%}"
            ran = "-" if weights is None else f"{passes(trunk, weights, tokenizer, given[:30]):.2f}"
            rows.append(_row(task.name, task.wanted, right / len(given), agrees, ran))
            if show_wrong:
                for answer in [one for one in given if not one.is_right][:4]:
                    _print(console, f"{answer.question.prompt!r}\n    {answer.text!r}")
    rows.append(_row("all facts", 0.9, facts_right / facts_asked, "-", "-"))
    _print(console, "\n".join(rows))
    return 0


def _row(name: str, wanted: float | None, right: float, agrees: str, ran: str) -> str:
    least = "-" if wanted is None else f"{wanted:.0%}"
    return f"| {name} | {least} | {right:.0%} | {agrees} | {ran} |"


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
