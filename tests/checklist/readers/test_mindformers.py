"""YAML of MindFormers: published examples re-created."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypocenter.checklist.checklist import Configuration
from hypocenter.checklist.reading import read

SAMPLES = Path(__file__).resolve().parents[1] / "samples" / "mindformers"


def values(found: Configuration) -> dict[str, object]:
    return {item: setting.value for item, setting in found.settings.items()}


def test_llama2() -> None:
    found = read([SAMPLES / "llama2_7b.yaml"])

    expected = {
        "model.num_layers": 32, "model.num_attention_heads": 32, "model.num_key_value_heads": 32,
        "model.intermediate_size": 11008, "model.norm_type": "rmsnorm", "model.norm_eps": 1e-5,
        "model.activation": "swiglu", "model.rope_theta": 10000.0, "model.rope_scaling": "none",
        "optimizer.type": "adamw", "optimizer.eps": 1e-8, "optimizer.beta2": 0.95, "optimizer.weight_decay": 0.0,
        "optimizer.lr": 5e-5, "optimizer.min_lr": 0, "optimizer.lr_schedule": "cosine", "optimizer.clip_grad": 1.0,
        "optimizer.warmup_fraction": 0.03, "optimizer.decay_bias_and_norm": False, "batch.micro_batch_size": 1,
        "batch.accumulation_steps": 8, "batch.global_batch_size": 64, "precision.compute_dtype": "float16",
        "precision.params_dtype": "float16", "precision.grad_reduce_dtype": "float16",
        "precision.norm_dtype": "float32",
        "precision.embedding_dtype": "float16", "precision.residual_dtype": "float16", "weights.init_dtype": "float16",
        "precision.softmax_dtype": "float16", "precision.rotary_dtype": "float16", "precision.loss_scale": "dynamic",
        "parallel.data": 8, "parallel.world_size": 8, "parallel.distributed_optimizer": True,
        "parallel.recompute": "none", "data.eos_token_id": 2, "fused.attention": True, "other.graph_fusion": False,
    }  # fmt: skip
    assert {item: values(found).get(item, "-") for item in expected} == expected
    assert found.unknown == ()
    assert found.settings["model.num_layers"].where == "llama2_7b.yaml:91"
    assert found.settings["model.rope_theta"].assumed == "MindFormers 1.6"
    assert "optimizer.total_steps" not in found.settings  # -1: those of the data set


def test_qwen3_in_the_newer_form() -> None:
    found = read([SAMPLES / "qwen3_32b.yaml"])

    expected = {
        "model.num_layers": 64, "model.num_key_value_heads": 8, "model.head_dim": 128, "model.activation": "swiglu",
        "model.qk_norm": True, "model.tie_word_embeddings": False, "model.qkv_bias": False, "model.fused_qkv": True,
        "optimizer.beta1": 0.9, "optimizer.lr_schedule": "constant", "optimizer.warmup_steps": 0, "data.seed": 1234,
        "weights.seed": 42, "parallel.tensor": 4, "parallel.pipeline": 4, "parallel.interleaved_copies": 2,
        "batch.accumulation_steps": 8, "batch.global_batch_size": 8, "precision.params_dtype": "float32",
        "precision.compute_dtype": "bfloat16", "precision.grad_reduce_dtype": "float32",
        "precision.residual_dtype": "float32", "precision.embedding_dtype": "float32", "precision.loss_scale": "none",
        "other.deterministic": True, "data.eod_mask_loss": False, "parallel.recompute": "full",
    }  # fmt: skip
    assert {item: values(found).get(item, "-") for item in expected} == expected
    assert "train_dataset.data_loader.config.eod: 1" in [setting.spelled for setting in found.unknown]


def test_experts() -> None:
    found = read([SAMPLES / "mixtral_8x7b.yaml"])

    expected = {
        "moe.num_experts": 8, "moe.top_k": 2, "moe.capacity_factor": 1.1, "moe.aux_loss_coeff": 0.05,
        "moe.token_drop_policy": "position", "moe.router_dtype": "float32", "moe.fused_permute": False,
        "moe.expert_intermediate_size": 14336, "moe.shared_expert_gate": False, "optimizer.warmup_steps": 300,
        "optimizer.clip_grad": 0.0, "batch.accumulation_steps": 16, "batch.global_batch_size": 32,
        "parallel.world_size": 16, "precision.grad_reduce_dtype": "float32", "precision.compute_dtype": "bfloat16",
    }  # fmt: skip
    assert {item: values(found).get(item, "-") for item in expected} == expected


@pytest.mark.parametrize(
    ("change", "item", "value"),
    [
        (("  capacity_factor: 1.1", "  capacity_factor: -1"), "moe.capacity_factor", None),
        (("  num_experts_chosen: 2", "  num_experts_chosen: 2\n  use_gating_sigmoid: True"),
         "moe.router_score", "sigmoid"),
        (("use_parallel: True", "use_parallel: False"), "parallel.tensor", 1),
        (("  scale_sense: 1.0", "  scale_sense: 1024"), "precision.loss_scale", 1024),
        (("  use_clip_grad: False", "  use_clip_grad: True\n  max_grad_norm: 0.5"), "optimizer.clip_grad", 0.5),
        (('    param_init_type: "float32"', '    param_init_type: "float32"\n    embedding_init_type: "bfloat16"'),
         "precision.embedding_dtype", "bfloat16"),
        (("    use_flash_attention: True", "    extend_method: PI\n    scaling_factor: 2"),
         "model.rope_scaling", "linear:2"),
        (("  warmup_ratio: 0.03", "  warmup_steps: 7"), "optimizer.warmup_steps", 7),
    ],
)  # fmt: skip
def test_keys_that_say_something_together(tmp_path: Path, change: tuple[str, str], item: str, value: object) -> None:
    text = (SAMPLES / "mixtral_8x7b.yaml").read_text()
    assert change[0] in text
    path = tmp_path / "run.yaml"
    path.write_text(text.replace(*change))

    found = read([path])

    assert found.settings[item].value == value


def test_a_model_that_is_not_known_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text((SAMPLES / "mixtral_8x7b.yaml").read_text().replace("LlamaConfig", "OwnConfig"))

    found = read([path])

    assert any("'OwnConfig' are not known here" in note for note in found.notes)
    assert "model.norm_type" not in found.settings
