"""What passes take, as a test says it."""

from __future__ import annotations

from collections.abc import Callable

from mlxgen.engine.step.cost import PassCost


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
