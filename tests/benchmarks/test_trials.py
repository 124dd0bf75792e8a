"""The model that agents are tried with says what its script says, at any length of the prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.trials import AGENTS, DONE, TASK, Agent, save_model

import mlxgen


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: str(agent.name))
def test_each_agent_gets_its_call_and_then_the_end(agent: Agent, tmp_path: Path) -> None:
    script = agent.script(tmp_path)
    lm = mlxgen.load(save_model(tmp_path / "model", script), draft="off", trust_remote_code=True)
    begun = [{"role": "system", "content": "Be brief. " * 300}, {"role": "user", "content": TASK}]
    first = lm.generate(begun, max_tokens=500)
    assert first.text.strip() == script[-1][1].strip() and first.finish_reason == "stop"
    if len(script) > 1:
        result = {"role": "tool", "tool_call_id": "1", "content": "written"}
        answer = {"role": "assistant", "content": first.text}
        assert lm.generate([*begun, answer, result], max_tokens=500).text == DONE
