"""The line to type so that a setting says another value."""

from __future__ import annotations

import pytest

from hypocenter.checklist.advising import respelled
from hypocenter.checklist.checklist import Setting, Value


@pytest.mark.parametrize(
    ("item", "value", "spelled", "target", "line"),
    [
        ("model.norm_eps", 1e-6, "rms_norm_eps: 1.0e-6", 1e-5, "rms_norm_eps: 1e-05"),
        ("model.norm_eps", 1e-6, "--norm-epsilon 1e-6", 1e-5, "--norm-epsilon 1e-05"),
        ("model.num_layers", 24, "--num-layers=24", 32, "--num-layers=32"),
        ("precision.compute_dtype", "bfloat16", 'compute_dtype: "bfloat16"', "float16", 'compute_dtype: "float16"'),
        ("optimizer.lr_schedule", "cosine", "lr_scheduler_type: cosine", "linear", "lr_scheduler_type: linear"),
        ("optimizer.weight_decay", 0.1, "weight_decay: 0.1", 0.30000000000000004, "weight_decay: 0.30000000000000004"),
    ],
)
def test_the_value_is_replaced(item: str, value: Value, spelled: str, target: Value, line: str) -> None:
    setting = Setting(item=item, value=value, spelled=spelled)

    assert respelled(setting, target) == line


@pytest.mark.parametrize(
    ("item", "value", "spelled", "target"),
    [
        ("optimizer.beta2", 0.95, "betas: [0.95, 0.95]", 0.999),  # which of the two
        ("precision.compute_dtype", "bfloat16", "--bf16", "float16"),  # no value stands there
        ("model.qkv_bias", True, "--add-qkv-bias", False),
        ("model.norm_eps", 1e-6, "", 1e-5),
        ("data.eos_token_id", 2, "eos_token_id: 2", (2, 3)),
        ("optimizer.lr_schedule", "constant", "lr_schedule.type: ConstantWarmUpLR", "linear"),  # no name of a class
        ("optimizer.clip_grad", 1.0, "clip: 1.0", None),
    ],
)
def test_where_it_is_not_plain_nothing_is_said(item: str, value: Value, spelled: str, target: Value) -> None:
    assert respelled(Setting(item=item, value=value, spelled=spelled), target) == ""


def test_what_was_computed_is_not_respelled() -> None:
    setting = Setting(item="batch.global_batch_size", value=64, spelled="batch_size: 64", derived="one of two")

    assert respelled(setting, 128) == ""
