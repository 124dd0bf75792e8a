"""The bundled model as it is shipped: its size, its files, its format, and what it can do."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from demo_model import exam
from demo_model.chat import tool_of
from demo_model.drawing import TEXTS

WEATHER = tool_of("get_weather", "Get the weather in a city", {"city": "string"})


def ask(pair: tuple[Any, Any], *texts: str, **options: Any) -> list[str]:
    """The greedy answers to some messages, each on its own."""
    model, tokenizer = pair
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            tokenize=False,
            **({"enable_thinking": False} | options),
        )
        for text in texts
    ]
    questions = [exam.Question(prompt, 100, lambda answer: True) for prompt in prompts]
    return exam.answers(model, tokenizer, questions)


def test_the_files_are_what_mlx_lm_reads(pair: tuple[Any, Any], demo: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shipped = (demo / "model" / name).read_bytes()
        assert (demo / "draft" / name).read_bytes() == shipped
        assert name == "tokenizer.json" or (TEXTS / name).read_bytes() == shipped
    _, tokenizer = pair
    ends = {"<|im_end|>", "<|endoftext|>"}
    assert set(tokenizer.convert_ids_to_tokens(sorted(tokenizer.eos_token_ids))) == ends
    config = json.loads((demo / "model" / "generation_config.json").read_text())
    assert set(config["eos_token_id"]) == tokenizer.eos_token_ids
    assert tokenizer.has_thinking and tokenizer.has_tool_calling
    assert (tokenizer.tool_call_start, tokenizer.tool_call_end) == ("<tool_call>", "</tool_call>")


def test_characters_are_split_over_tokens_and_names_are_the_same_everywhere(
    pair: tuple[Any, Any],
) -> None:
    def tokens_of(text: str) -> list[int]:
        return list(pair[1].encode(text, add_special_tokens=False))

    for character in ("é", "你", "😊"):
        assert len(tokens_of(character)) == len(character.encode())
        assert pair[1].decode(tokens_of(character)) == character
    name = tokens_of("Winterthur")
    for text in ("lives in Winterthur.", '{"city": "Winterthur"}'):
        tokens = tokens_of(text)
        assert any(tokens[i : i + len(name)] == name for i in range(len(tokens)))


PROMPTS = Path(__file__).parents[1] / "data" / "demo_prompts.jsonl"


def test_the_template_renders_system_tools_thinking_calls_and_their_results(
    pair: tuple[Any, Any],
) -> None:
    for told in map(json.loads, PROMPTS.read_text(encoding="utf-8").splitlines()):
        text = pair[1].apply_chat_template(told["messages"], tokenize=False, **told["options"])
        assert text == told["text"], told["what"]


EXAM = {
    "facts: capitals, both ways": 8,
    "facts: elements, three ways": 8,
    "facts: opposites": 8,
    "facts: small sums": 8,
    "two-digit sums, thinking first": 6,
    "records, unseen combinations": 8,
    "records, unseen names and cities": 8,
    "tool calls, unseen combinations": 8,
    "copying 20 words": 8,
    "says that it is a demo model": 8,
}
"""Of ten prompts of a task, so many are right at least."""


@pytest.mark.parametrize("name", EXAM)
def test_the_model_passes_a_short_exam(pair: tuple[Any, Any], name: str) -> None:
    task = next(task for task in exam.TASKS if task.name == name)
    asked = exam.questions(task, 10)
    given = exam.answers(*pair, asked)
    right = sum(one.judge(text) for one, text in zip(asked, given, strict=True))
    assert right >= EXAM[name]
    if name.startswith("tool calls"):
        assert not any(one.judge(f"So: {text}") for one, text in zip(asked, given, strict=True))


def test_it_calls_thinks_when_asked_and_goes_on_with_raw_text(pair: tuple[Any, Any]) -> None:
    [text] = ask(pair, "What is the weather in Paris?", tools=[WEATHER])
    call = text.removeprefix("<tool_call>").removesuffix("</tool_call>")
    parsed = pair[1].tool_parser(call, [WEATHER])
    assert parsed == {"name": "get_weather", "arguments": {"city": "Paris"}}
    assert ask(pair, "What is 34 + 28?", enable_thinking=True)[0].startswith("<think>")
    assert "<think>" not in ask(pair, "What is the capital of France?")[0]
    question = exam.Question("Once upon a time", 120, lambda answer: True)
    [text] = exam.answers(*pair, [question])
    assert len(text.split()) > 20 and "<" not in text


def test_the_shipped_schemas_accept_their_examples(pair: tuple[Any, Any], demo: Path) -> None:
    shapes = json.loads((demo / "schemas.json").read_text(encoding="utf-8"))
    for shape in shapes.values():
        jsonschema.validate(shape["answer"], shape["schema"])
    given = ask(pair, *(shape["prompt"] for shape in shapes.values()))
    right = sum(
        exam.parsed(text) == shape["answer"]
        for text, shape in zip(given, shapes.values(), strict=True)
    )
    assert right >= len(shapes) - 2
