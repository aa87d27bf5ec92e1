"""What a side means by not saying what the other says."""

from __future__ import annotations

import pytest
from made_sides import row, setting, side

from hypocenter.checklist.checklist import Value
from hypocenter.checklist.compare import RELATIONS, compare, implied
from hypocenter.checklist.items.item import load


@pytest.mark.parametrize(
    ("item", "known", "value"),
    [
        ("model.num_key_value_heads", {"model.num_attention_heads": 32}, 32),
        ("model.padded_vocab_size", {"model.vocab_size": 50257}, 50257),
        ("model.softmax_scale", {"model.head_dim": 64}, 0.125),
        ("moe.expert_intermediate_size", {"model.intermediate_size": 14336}, 14336),
        ("optimizer.warmup_fraction", {"optimizer.warmup_steps": 20, "optimizer.decay_steps": 1000}, 0.02),
        ("optimizer.warmup_fraction", {"optimizer.warmup_steps": 20, "optimizer.total_steps": 2000}, 0.01),
        ("optimizer.decay_steps", {"optimizer.total_steps": 2000}, 2000),
        ("parallel.distributed_optimizer", {"parallel.zero_stage": 0}, False),
        ("parallel.distributed_optimizer", {"parallel.zero_stage": 2}, True),
    ],
)
def test_it_follows_from_the_rest(item: str, known: dict[str, Value], value: Value) -> None:
    found = implied(item, {key: setting(key, each) for key, each in known.items()})

    assert found is not None
    assert (found.value, type(found.value)) == (value, type(value))
    assert found.derived


@pytest.mark.parametrize(
    ("item", "known"),
    [
        ("model.num_key_value_heads", {}),
        ("model.num_key_value_heads", {"model.num_attention_heads": "many"}),
        ("model.num_key_value_heads", {"model.num_attention_heads": True}),
        ("model.softmax_scale", {"model.head_dim": 0}),
        ("optimizer.warmup_fraction", {"optimizer.warmup_steps": 20, "optimizer.total_steps": 0}),
        ("optimizer.warmup_fraction", {"optimizer.warmup_steps": 20}),
        ("optimizer.decay_steps", {"optimizer.total_steps": float("inf")}),
        ("model.norm_eps", {"model.num_layers": 2}),
    ],
)
def test_where_it_does_not_follow_nothing_is_said(item: str, known: dict[str, Value]) -> None:
    assert implied(item, {key: setting(key, each) for key, each in known.items()}) is None


def test_it_is_asked_for_only_when_the_other_side_speaks() -> None:
    quiet, speaks = side({"model.num_attention_heads": 32}), {"model.num_attention_heads": 32}

    nobody = compare(quiet, side(speaks, label="b"))
    other = compare(quiet, side({**speaks, "model.num_key_value_heads": 8}, label="b"))

    assert row(nobody, "model.num_key_value_heads").verdict == "not-set"
    assert row(other, "model.num_key_value_heads").verdict == "different"
    assert row(other, "model.num_key_value_heads").baseline == 32


def test_padding_of_the_vocabulary_is_a_difference() -> None:
    found = compare(
        side({"model.vocab_size": 50257, "model.padded_vocab_size": 50304}),
        side({"model.vocab_size": 50257}, label="b"),
    )

    assert row(found, "model.padded_vocab_size").verdict == "different"
    assert "denominator" not in row(found, "model.padded_vocab_size").why
    assert "softmax" in row(found, "model.padded_vocab_size").why


def test_relations_are_about_items_that_exist() -> None:
    named = {key for relation in RELATIONS for key in (relation.item, *relation.of)}

    assert named <= set(load().by_key)
