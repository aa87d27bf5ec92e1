"""Healthy models of Transformers: every relation that can be asked holds, and at most twelve forwards tell."""

from __future__ import annotations

import pytest

from hypocenter.testing import check_relations
from tests.healthy.models import ZOO, batches

CAUSAL = ("gpt2", "llama", "mixtral", "mamba", "opt")
OTHERS = ("bert", "t5", "bart", "longformer", "vit", "whisper")


@pytest.mark.parametrize("name", [*CAUSAL, *OTHERS])
@pytest.mark.parametrize("is_training", [True, False])
def test_nothing_is_said_of_a_healthy_model(name, is_training):
    recipe = ZOO[name]

    looked = check_relations(recipe.make(recipe.attention[-1]).train(is_training), batches(name)[0])

    assert looked.broken == []
    assert {"samples", "order"} <= set(looked.held)
    assert ("future" in looked.held) == (name in CAUSAL)
    assert looked.n_forwards <= 12
