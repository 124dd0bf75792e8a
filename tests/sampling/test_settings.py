from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from mlxgen.sampling import SamplingSettings


def test_settings_are_values() -> None:
    settings = SamplingSettings(temperature=1, logit_bias={1: 2.0})
    for twin in (copy.deepcopy(settings), pickle.loads(pickle.dumps(settings)), replace(settings)):
        assert twin == settings
        assert hash(twin) == hash(settings)
    with pytest.raises(FrozenInstanceError):
        settings.top_k = 3  # type: ignore[misc]


def test_penalties_say_whether_counts_are_needed() -> None:
    assert not SamplingSettings(temperature=1, top_k=4).penalises
    assert SamplingSettings(repetition_penalty=1.1).penalises
    assert SamplingSettings(presence_penalty=-0.1).penalises
    assert SamplingSettings(frequency_penalty=0.1).penalises
