"""What passes take, as a test says it."""

from __future__ import annotations

from collections.abc import Callable

from mlxgen.engine.step.cost import PassCost
from mlxgen.engine.step.pace import Pace


class Fixed(PassCost):
    """Learns nothing: a pass takes what ``shape`` gives for its tokens."""

    def __init__(self, shape: Callable[[int], float]) -> None:
        super().__init__()
        self._shape = shape

    @property
    def is_known(self) -> bool:
        return True

    def _of(self, tokens: int, *, most: bool = False) -> float:
        return self._shape(tokens)

    def saw(
        self,
        tokens: int,
        seconds: float,
        *,
        after: int = 0,
        least: bool = False,
        most: bool = False,
    ) -> None:
        pass


COSTS: dict[str, Callable[[], Fixed]] = {
    "every pass alike": lambda: Fixed(lambda tokens: 1.0),
    "by the token": lambda: Fixed(float),
    "by both": lambda: Fixed(lambda tokens: 4.0 + tokens),
}


class Still(Pace):
    """Learns nothing: a step takes a second, and so do ten tokens of a prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.token = 0.1

    def step(self, rows: int) -> float:
        return 1.0

    def saw_step(self, rows: int, seconds: float) -> None:
        pass

    def saw_prompts(self, rows: int, tokens: int, seconds: float) -> None:
        pass
