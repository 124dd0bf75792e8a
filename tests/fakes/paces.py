"""What steps take, as a test says it."""

from __future__ import annotations

from mlxgen.engine.step.pace import Pace


class Still(Pace):
    """Learns nothing: a step takes a second, and so do ten tokens of a prompt. So drafts pay."""

    def __init__(self) -> None:
        super().__init__()
        self.token = 0.1

    def step(self, rows: int) -> float:
        return 1.0

    def saw_step(self, rows: int, seconds: float) -> None:
        pass

    def saw_prompts(self, rows: int, tokens: int, seconds: float) -> None:
        pass
