"""The model that agents are tried with says what its script says, at any length of the prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agent_trials.agents import AGENTS, DONE, TASK
from agent_trials.scripted import scripted


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_each_agent_gets_its_call_and_then_the_end(
    agent: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(agent, type(AGENTS[0]))
    script = agent.script(tmp_path)
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script), encoding="utf-8")
    monkeypatch.setenv("MLXGEN_SCRIPT", str(path))
    lm = scripted()
    begun = [{"role": "system", "content": "Be brief. " * 300}, {"role": "user", "content": TASK}]
    first = lm.generate(begun, max_tokens=500)
    assert first.text.strip() == script[-1][1].strip() and first.finish_reason == "stop"
    if len(script) > 1:
        result = {"role": "tool", "tool_call_id": "1", "content": "written"}
        answer = {"role": "assistant", "content": first.text}
        assert lm.generate([*begun, answer, result], max_tokens=500).text == DONE
