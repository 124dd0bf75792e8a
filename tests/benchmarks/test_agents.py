"""The sessions of the benchmark of agents, and the model that says what a script has it say."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmarks import agents
from benchmarks.agents import AGENTS, DONE, MODELS, SCRIPT, TASK, Agent, Session
from mlx_lm.tokenizer_utils import load as load_tokenizer

import mlxgen
from mlxgen.tokens import in_common


def prompts(tokenizer: Any, *, thinks: bool, turns: int) -> list[list[int]]:
    """Those of a session whose answers are the script's."""
    session, found = Session(thinks, agents.words_of(tokenizer)), []
    call = {"name": "read", "arguments": json.dumps({"path": "src/main.py"})}
    for number in range(turns):
        session.turn(number)
        found.append(session.prompt(tokenizer))
        said = {"role": "assistant", "content": agents.SAID}
        said |= {"reasoning_content": agents.THOUGHT} if thinks else {}
        calls = [{"id": "c", "type": "function", "function": call}]
        session.messages.append({**said, "tool_calls": calls})
    return found


def test_sessions_go_on_from_their_answers_until_the_user_speaks(tmp_path: Path) -> None:
    folder = agents.save_model(tmp_path / "model", SCRIPT)
    shutil.copy(agents.HERE / "agent_template.jinja", folder / "chat_template.jinja")
    tokenizer: Any = load_tokenizer(folder)
    *turns, new = prompts(tokenizer, thinks=True, turns=agents.USER_EVERY + 1)
    answer = tokenizer.encode(SCRIPT[True][1], add_special_tokens=False)
    for before, after in itertools.pairwise(turns):
        assert after[: len(before) + len(answer)] == before + answer
    assert new[: len(turns[0]) + len(answer)] != turns[0] + answer
    assert new[: len(turns[0])] == turns[0]  # the reasoning of the first answer is gone
    (other,) = prompts(tokenizer, thinks=False, turns=1)
    assert len(turns[0]) / 2 < in_common(turns[0], other) < len(other)  # they share the system's


def test_tokens_are_new_after_the_longest_beginning_that_was_seen() -> None:
    seen = [[1, 2, 3, 4, 5], [1, 2, 9]]
    asked = ([1, 2, 3, 4, 7, 6], [1, 2, 9, 9], [1, 2], [5])
    assert [agents.new_tokens(prompt, seen) for prompt in asked] == [2, 1, 1, 1]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: str(model.name))
def test_a_scripted_model_says_its_script_with_any_caches(
    model: agents.Model, tmp_path: Path
) -> None:
    folder = agents.save_model(tmp_path / "model", SCRIPT, model.inner)
    lm = mlxgen.load(folder, draft="off", trust_remote_code=True)
    for thinks in (True, False):
        chat = mlxgen.Chat(
            [{"role": "user", "content": "Hi"}], template={"enable_thinking": thinks}
        )
        tokens: Any = lm.generate(chat.tokens(lm.vocabulary), temperature=0, max_tokens=99).tokens
        assert lm.vocabulary.decode(tokens).strip() == SCRIPT[thinks][1]


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: str(agent.name))
def test_each_agent_gets_its_call_and_then_the_end(agent: Agent, tmp_path: Path) -> None:
    script = agent.script(tmp_path)
    folder = agents.save_model(tmp_path / "model", script)
    lm = mlxgen.load(folder, draft="off", trust_remote_code=True)
    begun = [{"role": "system", "content": "Be brief. " * 300}, {"role": "user", "content": TASK}]
    first = lm.generate(begun, max_tokens=500)
    assert first.text.strip() == script[-1][1].strip() and first.finish_reason == "stop"
    result = {"role": "tool", "tool_call_id": "1", "content": "<tool_response>written"}
    answer = {"role": "assistant", "content": first.text}
    assert lm.generate([*begun, answer, result], max_tokens=500).text == DONE
