"""Drafts of several answers, and what is known with one key only."""

from __future__ import annotations

from typing import Any

import pytest

from .running import Running, question, running


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", question("Tell me a story about a fox.")),
        ("/v1/completions", {"prompt": "Once upon a time", "temperature": 0}),
        ("/v1/completions", {"prompt": ["Once", "Two"], "temperature": 0}),
    ],
)
def test_each_of_several_answers_is_drafted_from_a_prediction(
    server: Running, path: str, body: dict[str, Any]
) -> None:
    whole = {**body, "n": 3, "seed": 5, "max_tokens": 24}

    def said(**more: Any) -> list[Any]:
        answer = server.post(path, {**whole, **more})
        assert answer.status_code == 200, answer.text
        return [choice.get("message") or choice["text"] for choice in answer.json()["choices"]]

    texts = said()
    told = [each if isinstance(each, str) else each["content"] for each in texts]
    assert said(prediction={"type": "content", "content": told[0]}) == texts


@pytest.mark.slow
def test_what_was_read_and_written_with_one_key_is_never_proposed_with_another() -> None:
    words = ["quay", "elk", "myth", "fjord", "wax", "vim", "zebu", "jolt", "pyx", "gnu"]
    text = " ".join(f"{a}{b}" for a in words for b in reversed(words))
    body = {"prompt": f"{text} ", "max_tokens": 60, "ignore_eos": True, "temperature": 1, "seed": 4}
    with running("--draft", "ngram", MLXGEN_API_KEY="first second") as server:

        def drafted(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            answer = server.post("/v1/completions", body, headers=headers).json()
            texts.add(answer["choices"][0]["text"])
            return int(answer["usage"]["timings"].get("draft_n_accepted", 0))

        texts: set[str] = set()
        before = drafted("first")
        assert drafted("second") < before + 10
        assert drafted("first") > before + 20
        assert len(texts) == 1
