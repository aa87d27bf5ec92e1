"""Launch scripts of MindSpeed-LLM: Megatron-LM's arguments and MindSpeed's own, in the same items."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypocenter.checklist.reading import read

SAMPLE = Path(__file__).resolve().parents[1] / "samples" / "megatron" / "mindspeed_moe.sh"


@pytest.mark.parametrize(
    ("item", "value"),
    [
        ("model.num_layers", 30),  # of 32, two do nothing
        ("fused.rope", True),
        ("fused.norm", True),
        ("fused.swiglu", True),
        ("moe.n_dense_layers", 1),
        ("moe.shared_expert_size", 2816),
        ("moe.norm_topk_prob", True),
        ("moe.load_balancing", "seq_aux_loss"),
        ("moe.aux_loss_coeff", 0.001),
        ("moe.router_dtype", "float32"),
        ("model.rope_scaling", "yarn:40"),
        ("other.deterministic", True),
        ("other.overflow_mode", "infnan"),
        ("data.tokenizer", "./tokenizer"),
        ("data.template", "deepseek3"),
    ],
)
def test_what_a_script_of_mindspeed_says(item: str, value: object) -> None:
    found = read([SAMPLE])

    assert found.settings[item].value == value
    assert found.settings[item].assumed is None


def test_no_flag_of_the_script_is_unknown() -> None:
    assert [setting.spelled for setting in read([SAMPLE]).unknown] == []


def test_without_mindspeeds_flags_nothing_changes(tmp_path: Path) -> None:
    script = tmp_path / "plain.sh"
    script.write_text(
        "python pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --swiglu --bf16\n"
    )

    found = read([script])

    assert found.settings["model.num_layers"].value == 4
    assert found.settings["fused.swiglu"].assumed is not None
