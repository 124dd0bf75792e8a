"""A server of a model whose makers recommend how it is sampled."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ..fakes.checkpoints import write_checkpoint
from .exchanges import carry_out
from .running import Running

RECOMMENDED = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}


@pytest.fixture(scope="module")
def recommending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = write_checkpoint(tmp_path_factory.mktemp("models") / "tiny")
    file = json.dumps({**RECOMMENDED, "do_sample": True, "min_p": 7})
    (folder / "generation_config.json").write_text(file)
    with Running("--model", str(folder), "--log-format", "json", "--log-level", "debug") as server:
        yield server


def text(server: Running, **fields: object) -> str:
    body = {"prompt": "so", "max_tokens": 24, "ignore_eos": True, **fields}
    answer: str = server.post("/v1/completions", body).json()["choices"][0]["text"]
    return answer


def test_requests_get_what_is_recommended_and_differ_without_a_seed(recommending: Running) -> None:
    drawn = text(recommending, seed=5)
    assert drawn == text(recommending, seed=5, **RECOMMENDED)
    assert drawn == text(recommending, seed=5, **dict.fromkeys(RECOMMENDED))
    assert drawn != text(recommending, temperature=0)
    assert len({text(recommending) for _ in range(3)}) > 1
    assert text(recommending, temperature=0) == text(recommending, temperature=0)


def test_what_is_in_force_is_shown(recommending: Running) -> None:
    carry_out(recommending, "recommending")


def test_what_was_set_aside_is_a_line_of_the_log(recommending: Running) -> None:
    recommending.wait_until(
        lambda: any('"ready"' in line for line in list(recommending.log)), "nothing was logged"
    )
    lines = [json.loads(line) for line in recommending.log if line.startswith("{")]
    said = [line["message"] for line in lines if line["level"] == "warning"]
    assert any("ignored min_p: expected a number from 0 to 1, got 7" in line for line in said), (
        recommending.log
    )
    (ready,) = [line for line in lines if line["message"] == "ready"]
    assert ready["sampling"] == "temperature 0.6, top_p 0.95, top_k 20"
