"""Loads the bundled models once."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def demo() -> Path:
    return ROOT / "mlxgen" / "demo"


@pytest.fixture(scope="session")
def pair(demo: Path) -> tuple[Any, Any]:
    """The demo model and its tokenizer, as mlx-lm loads them."""
    from mlx_lm import load

    model, tokenizer = load(str(demo / "model"))[:2]
    return model, tokenizer


@pytest.fixture
def words(pair: tuple[Any, Any]) -> Tokenizer:
    """The tokenizer, as training has it."""
    return Tokenizer.from_str(pair[1].backend_tokenizer.to_str())
