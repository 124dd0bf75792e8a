"""The library as somebody meets it in the first hour."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

import mlxgen
from mlxgen import LanguageModel, Regex


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return mlxgen.load()


def test_a_chat_answers_one_question_without_its_thinking(lm: LanguageModel) -> None:
    question = "What is the capital of France?"
    assert lm.chat(question) == "The capital of France is Paris."
    whole = lm.generate([{"role": "user", "content": question}], max_tokens=None).text
    assert whole.endswith(lm.chat(question)) and "<think>" in whole
    assert lm.chat(question, max_tokens=3) == ""  # it was still thinking
    for filters in (Regex("Rome|Oslo"), [Regex("Rome|Oslo"), Regex("R.*")]):
        assert lm.chat(question, filters=filters, system="Be brief.") in ("Rome", "Oslo")
    for wrong in ("", " ", ["a"], None):
        with pytest.raises(mlxgen.PromptError, match=r"lm\.chat"):
            lm.chat(wrong)  # type: ignore[arg-type]


def test_an_empty_answer_to_raw_text_gets_a_hint_once(
    lm: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    empty: dict[str, Any] = {"max_tokens": 1, "stop": [chr(c) for c in range(1, 127)]}
    with caplog.at_level(logging.WARNING, "mlxgen"):
        lm.generate([1, 2, 3], **empty)
        assert not caplog.records
        for _ in range(2):
            assert lm.generate("What is the capital of France?", **empty).text == ""
    assert [record.getMessage() for record in caplog.records if "lm.chat" in record.getMessage()]
    assert len(caplog.records) == 1


def fail(result: mlxgen.PostSamplingResult) -> None:
    raise ValueError("no")


def test_a_list_of_strings_is_for_batches_which_return_results_in_order(lm: LanguageModel) -> None:
    prompts = ["Once upon a time", "The", "A"]
    with pytest.raises(mlxgen.PromptError, match=re.escape("use lm.batch(prompts)")):
        lm.generate(prompts)  # type: ignore[arg-type]
    batch = lm.batch(prompts, max_tokens=6)
    results = batch.run()
    assert [result.text for result in results] == [
        lm.generate(prompt, max_tokens=6).text for prompt in prompts
    ]
    assert batch.run() == results
    failing = lm.batch(["a", "b"], max_tokens=3, each=[{"hooks": [fail]}, {}])
    for _ in range(2):
        with pytest.raises(mlxgen.HookError):
            failing.run()
    assert failing.results[0] is None and failing.results[1] is not None
    assert repr(failing) == "<Batch 2 of 2 prompts done, 1 failed, 3 tokens>"


def test_the_repr_of_a_stream_and_of_a_result_says_where_they_stand(lm: LanguageModel) -> None:
    stream = lm.stream("Once upon a time", max_tokens=2)
    next(stream)
    assert re.fullmatch(r"<Stream '.+', 1 token, running>", repr(stream))
    stream.close()
    assert repr(stream).endswith("1 token, cancelled>")
    assert repr(lm.generate("Once", max_tokens=1)).endswith("', 1 token, length>")


def test_messages_name_no_class_of_the_inside(lm: LanguageModel) -> None:
    public, user = set(mlxgen.__all__), {"role": "user"}
    wrong: list[Any] = [5, None, user, [], [{}], ["a"], [1, "a"], [{"role": 5}], "", b"a"]
    asked: list[tuple[Any, dict[str, Any]]] = [(each, {}) for each in wrong]
    asked += [("a", {name: object()}) for name in ("stop", "filters", "hooks", "draft")]
    with pytest.raises(mlxgen.PromptError, match=r"messages\[0\].content: expected text, got none"):
        lm.generate([user])
    for prompt, given in asked:
        with pytest.raises(mlxgen.MlxgenError) as caught:
            lm.generate(prompt, **given)
        named = set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", str(caught.value)))
        assert named <= public | {"NoneType"}, caught.value


def test_a_model_offers_what_the_documentation_names(lm: LanguageModel) -> None:
    page = (Path(__file__).parent.parent / "docs" / "library.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `lm.")]
    named = re.findall(r"`lm\.(\w+)`", "".join(row.split(" | ")[0] for row in rows))
    assert sorted(named) == [name for name in dir(lm) if not name.startswith("_")]
