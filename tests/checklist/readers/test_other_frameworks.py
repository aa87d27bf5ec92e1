"""TrainingArguments, DeepSpeed, accelerate and torchtitan, alone and together."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hypocenter.checklist.checklist import Configuration
from hypocenter.checklist.reading import read
from hypocenter.checklist.tables import table

SAMPLES = Path(__file__).resolve().parents[1] / "samples"


def values(found: Configuration) -> dict[str, object]:
    return {item: setting.value for item, setting in found.settings.items()}


def training_arguments() -> Any:
    from transformers import TrainingArguments

    return TrainingArguments


def check(found: Configuration, expected: dict[str, Any]) -> None:
    assert {item: values(found).get(item, "-") for item in expected} == expected


def written(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def test_training_arguments() -> None:
    found = read([SAMPLES / "transformers" / "training_args.json"])

    check(found, {
        "optimizer.lr": 2e-5, "optimizer.lr_schedule": "cosine", "optimizer.total_steps": 1000,
        "optimizer.warmup_fraction": 0.03, "optimizer.warmup_steps": 30, "optimizer.type": "adamw",
        "optimizer.beta2": 0.95, "batch.micro_batch_size": 4, "batch.accumulation_steps": 8,
        "precision.compute_dtype": "bfloat16", "precision.tf32": True, "weights.seed": 42, "data.seed": 42,
        "parallel.recompute": "full", "optimizer.decay_bias_and_norm": False, "optimizer.min_lr": 0.0,
    })  # fmt: skip


def test_the_defaults_of_training_arguments_are_those_installed() -> None:
    real = {field.name: field.default for field in dataclasses.fields(training_arguments())}
    pairs = {
        "optimizer.lr": "learning_rate", "optimizer.lr_schedule": "lr_scheduler_type", "optimizer.beta1": "adam_beta1",
        "optimizer.beta2": "adam_beta2", "optimizer.eps": "adam_epsilon", "optimizer.weight_decay": "weight_decay",
        "optimizer.clip_grad": "max_grad_norm", "batch.micro_batch_size": "per_device_train_batch_size",
        "batch.accumulation_steps": "gradient_accumulation_steps", "weights.seed": "seed",
        "optimizer.warmup_steps": "warmup_steps", "other.deterministic": "full_determinism",
        "other.label_smoothing": "label_smoothing_factor",
    }  # fmt: skip

    defaults = table("training_arguments").defaults

    assert {item: defaults[item] for item in pairs} == {item: real[name] for item, name in pairs.items()}


def test_every_training_argument_is_known_or_has_an_item() -> None:
    known = table("training_arguments")

    missing = {field.name for field in dataclasses.fields(training_arguments()) if not known.knows(field.name)}

    assert missing <= {
        "average_tokens_across_devices",
        "logging_nan_inf_filter",
        "optim_target_modules",
        "dataloader_drop_last",
    }


def test_real_training_arguments_as_json(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    own = {"learning_rate": 3e-4, "max_steps": 50, "warmup_steps": 5}
    real = training_arguments()(output_dir=str(tmp_path), use_cpu=True, **own)
    path.write_text(real.to_json_string())

    found = read([path])

    check(found, {"optimizer.lr": 3e-4, "optimizer.total_steps": 50, "optimizer.warmup_steps": 5, "weights.seed": 42})


def test_llama_factory_names_its_further_file() -> None:
    found = read([SAMPLES / "transformers" / "llama_factory.yaml"])

    check(found, {
        "data.template": "llama3", "model.seq_length": 2048, "fused.attention": True, "optimizer.epochs": 3.0,
        "weights.load_path": "meta-llama/Meta-Llama-3-8B-Instruct", "optimizer.warmup_fraction": 0.1,
    })  # fmt: skip
    assert any("ds_z3_config.json is not read" in note for note in found.notes)
    assert "parallel.zero_stage" not in found.settings
    assert [setting.spelled for setting in found.unknown] == ["finetuning_type: full"]


def test_deepspeed() -> None:
    found = read([SAMPLES / "deepspeed" / "fp16.json"])

    check(found, {
        "batch.global_batch_size": 64, "batch.micro_batch_size": 4, "optimizer.type": "adamw", "optimizer.beta2": 0.95,
        "optimizer.lr_schedule": "linear", "optimizer.warmup_steps": 100, "optimizer.decay_steps": 5000,
        "precision.compute_dtype": "float16", "precision.loss_scale": "dynamic", "parallel.zero_stage": 1,
        "optimizer.clip_grad": 1.0, "precision.grad_reduce_dtype": "float16",
    })  # fmt: skip
    assert "adam_w_mode" in (found.settings["optimizer.type"].derived or "")


def test_a_model_its_arguments_and_deepspeed_together() -> None:
    paths = ["transformers/llama3_1_8b.json", "transformers/training_args.json", "deepspeed/zero2_auto.json"]

    found = read([SAMPLES / path for path in paths])

    assert found.kinds == ("hf-config", "training-arguments", "deepspeed-json")
    check(found, {
        "model.num_layers": 32, "optimizer.lr": 2e-5, "precision.compute_dtype": "bfloat16", "parallel.zero_stage": 2,
        "batch.micro_batch_size": 4, "optimizer.clip_grad": 1.0, "optimizer.beta2": 0.95,
    })  # fmt: skip
    assert any('are "auto"' in note for note in found.notes)


def test_a_later_file_has_the_last_word_and_it_is_told(tmp_path: Path) -> None:
    first = written(tmp_path, "a.json", {"per_device_train_batch_size": 4, "learning_rate": 1e-4, "max_grad_norm": 0.5})
    second = written(tmp_path, "ds.json", {"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0})

    found = read([first, second])

    assert found.settings["optimizer.clip_grad"].value == 1.0
    assert "ds.json:1: gradient_clipping: 1.0 takes the place of max_grad_norm: 0.5 (a.json:1)" in found.notes


@pytest.mark.parametrize(
    ("content", "item", "value"),
    [
        ({"bf16": {"enabled": True}}, "precision.params_dtype", "bfloat16"),
        ({"fp16": {"enabled": True, "loss_scale": 128}}, "precision.loss_scale", 128),
        ({"communication_data_type": "fp32", "bf16": {"enabled": True}}, "precision.grad_reduce_dtype", "float32"),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "optimizer.type", "adam"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
          "scheduler": {"type": "WarmupCosineLR", "params": {"cos_min_ratio": 0.1}}}, "optimizer.min_lr", 0.01),
        ({"torch_autocast": {"enabled": True, "dtype": "float16"}}, "precision.compute_dtype", "float16"),
    ],
)  # fmt: skip
def test_what_deepspeed_says_together(content: dict[str, Any], item: str, value: object, tmp_path: Path) -> None:
    found = read([written(tmp_path, "ds.json", {"zero_optimization": {"stage": 1}, **content})])

    assert found.settings[item].value == value


def test_accelerate() -> None:
    fsdp = read([SAMPLES / "accelerate" / "fsdp.yaml"])
    deepspeed = read([SAMPLES / "accelerate" / "deepspeed.yaml"])

    check(fsdp, {
        "parallel.zero_stage": 3, "parallel.recompute": "full", "precision.compute_dtype": "bfloat16",
        "parallel.world_size": 8,
    })  # fmt: skip
    check(deepspeed, {
        "parallel.zero_stage": 2, "batch.accumulation_steps": 4, "optimizer.clip_grad": 1.0, "parallel.world_size": 16,
        "precision.compute_dtype": "float16", "precision.loss_scale": "dynamic",
    })  # fmt: skip


def test_ranks_of_accelerate_make_the_global_batch_of_the_arguments() -> None:
    found = read([SAMPLES / "transformers" / "training_args.json", SAMPLES / "accelerate" / "fsdp.yaml"])

    check(found, {"batch.global_batch_size": 4 * 8 * 8, "parallel.data": 8, "parallel.zero_stage": 3})


def test_torchtitan() -> None:
    found = read([SAMPLES / "torchtitan" / "llama3_8b.toml"])

    check(found, {
        "model.architecture": "llama3", "model.num_layers": 32, "model.intermediate_size": 14336,
        "model.seq_length": 8192, "optimizer.lr": 3e-4, "optimizer.min_lr": 3e-5, "optimizer.lr_schedule": "cosine",
        "optimizer.warmup_steps": 200, "optimizer.decay_steps": 1000, "optimizer.beta2": 0.95,
        "optimizer.decay_bias_and_norm": True, "batch.global_batch_size": 64, "batch.accumulation_steps": 8,
        "parallel.data": 8, "parallel.tensor": 2, "parallel.world_size": 16, "parallel.recompute": "selective",
        "precision.compute_dtype": "bfloat16", "precision.grad_reduce_dtype": "float32", "weights.seed": 42,
        "other.deterministic": True,
    })  # fmt: skip
    assert found.settings["optimizer.lr"].where == "llama3_8b.toml:17"
    assert found.unknown == ()


def test_torchtitan_of_2024() -> None:
    found = read([SAMPLES / "torchtitan" / "llama3_8b_2024.toml"])

    check(found, {
        "model.norm_type": "rmsnorm", "optimizer.warmup_steps": 200, "batch.micro_batch_size": 1,
        "parallel.recompute": "full", "parallel.tensor": 1, "other.compile": False, "optimizer.total_steps": 1000,
    })  # fmt: skip
    assert found.unknown == ()
