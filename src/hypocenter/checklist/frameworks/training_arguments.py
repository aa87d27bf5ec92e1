"""Keys of TrainingArguments that say something only together."""

from __future__ import annotations

from typing import Any

from hypocenter.checklist.file_entries import FileEntries, framework
from hypocenter.checklist.words import boolean, dtype, number, whole

_FLASH = {"fa2": True, "fa3": True, "flash_attention_2": True, "sdpa": True, "eager": False, "disabled": False}
_SHARDS = {"full_shard": 3, "shard_grad_op": 2, "hybrid_shard": 3, "no_shard": 0, "1": 3, "2": 2, "3": 0}


@framework("training_arguments")
def settle(sheet: FileEntries) -> None:
    """Format, seeds, warm-up in steps, sharding, recomputation."""
    _format(sheet)
    _seeds(sheet)
    _steps(sheet)
    _sharding(sheet)
    _rest(sheet)


def _format(sheet: FileEntries) -> None:
    if sheet.is_on("bf16") or sheet.is_on("pure_bf16"):
        key = "bf16" if sheet.is_on("bf16") else "pure_bf16"
        sheet.set("precision.compute_dtype", "bfloat16", key)
        if key == "pure_bf16":
            sheet.set("precision.params_dtype", "bfloat16", key)
    elif sheet.is_on("fp16"):
        sheet.set("precision.compute_dtype", "float16", "fp16")
        sheet.set("precision.loss_scale", "dynamic", "fp16")
    elif sheet.says("bf16", "fp16"):
        sheet.set("precision.compute_dtype", "float32", "bf16", "fp16")
    key = sheet.first("torch_dtype", "dtype")
    if key and sheet.value(key) != "auto":
        sheet.set("precision.params_dtype", dtype(sheet.value(key)), key)


def _seeds(sheet: FileEntries) -> None:
    if sheet.says("seed"):
        sheet.set("weights.seed", number(sheet.value("seed")), "seed")
    key = "data_seed" if sheet.says("data_seed") else "seed"
    if sheet.says(key):
        sheet.set("data.seed", number(sheet.value(key)), key)


def _steps(sheet: FileEntries) -> None:
    total: Any = whole(sheet.value("max_steps"))
    if isinstance(total, int) and total > 0:
        sheet.set("optimizer.total_steps", total, "max_steps")
        sheet.set("optimizer.decay_steps", total, "max_steps", derived="the length of the training")
        sheet.forget("optimizer.epochs")
    elif sheet.is_lost("max_steps"):
        sheet.set("optimizer.total_steps", None, "max_steps")
    elif not sheet.says("num_train_epochs", "num_epochs"):
        sheet.assume("optimizer.epochs", 3.0)
    steps: Any = number(sheet.value("warmup_steps"))
    ratio: Any = number(sheet.value("warmup_ratio"))
    if isinstance(steps, float) and 0 < steps < 1:  # since transformers 5 a part of the training may stand there
        sheet.set("optimizer.warmup_fraction", steps, "warmup_steps")
        sheet.forget("optimizer.warmup_steps")
    elif sheet.says("warmup_steps") and steps:
        sheet.set("optimizer.warmup_steps", steps, "warmup_steps")
    elif sheet.says("warmup_ratio") and ratio != 0:
        sheet.set("optimizer.warmup_fraction", ratio, "warmup_ratio")
        sheet.forget("optimizer.warmup_steps")
    elif sheet.says("warmup_steps", "warmup_ratio"):
        sheet.set("optimizer.warmup_steps", steps or 0, "warmup_steps", "warmup_ratio")


def _sharding(sheet: FileEntries) -> None:
    if sheet.says("fsdp"):
        words = str(sheet.value("fsdp")).lower().replace(",", " ").split()
        stage = next(
            (_SHARDS[word] for word in words if word in _SHARDS), 3 if boolean(sheet.value("fsdp")) is True else 0
        )
        sheet.set("parallel.zero_stage", stage, "fsdp", derived="what FSDP shards, in the words of ZeRO")
    if sheet.says("deepspeed"):
        sheet.forget("parallel.zero_stage")
        sheet.note(f"the DeepSpeed configuration {sheet.value('deepspeed')} is not read: give it as a further file")
    for key in ("gradient_checkpointing", "activation_checkpointing"):
        if sheet.says(key):
            sheet.set("parallel.recompute", "full" if boolean(sheet.value(key)) is True else "none", key)


def _rest(sheet: FileEntries) -> None:
    key = sheet.first("flash_attn", "attn_implementation", "flash_attention")
    if key and sheet.value(key) != "auto":
        word = str(sheet.value(key)).lower()
        sheet.set("fused.attention", _FLASH.get(word, boolean(sheet.value(key))), key)
    if sheet.says("train_sampling_strategy"):
        is_random = sheet.value("train_sampling_strategy") != "sequential"
        sheet.set("data.shuffle", is_random, "train_sampling_strategy")
    if sheet.says("adafactor") and sheet.is_on("adafactor"):
        sheet.set("optimizer.type", "adafactor", "adafactor")
    key = sheet.first("packing", "sample_packing")
    if key:
        sheet.set("data.packing", boolean(sheet.value(key)), key)
