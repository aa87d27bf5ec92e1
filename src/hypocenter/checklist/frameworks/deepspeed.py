"""Keys of a DeepSpeed configuration that say something only together."""

from __future__ import annotations

from typing import Any

from hypocenter.checklist.file_entries import FileEntries, framework
from hypocenter.checklist.words import boolean, dtype, number, product

_RATES = ("scheduler.params.warmup_max_lr", "optimizer.params.lr")


@framework("deepspeed")
def settle(sheet: FileEntries) -> None:
    """Formats, the optimizer's type, betas, and what the schedule takes for the rate."""
    _format(sheet)
    _optimizer(sheet)
    for name, item in (("warmup_min_lr", "optimizer.warmup_init_lr"), ("warmup_type", "optimizer.warmup_shape")):
        key = f"scheduler.params.{name}"
        if sheet.says(key):
            sheet.set(item, sheet.value(key), key)
    if sheet.says(_RATES[0]) and not sheet.says(_RATES[1]):
        sheet.set("optimizer.lr", sheet.value(_RATES[0]), _RATES[0])
    if sheet.says("scheduler.params.cos_min_ratio"):
        ratio, rate = number(sheet.value("scheduler.params.cos_min_ratio")), number(sheet.value(_RATES[1]))
        if isinstance(ratio, (int, float)) and isinstance(rate, (int, float)):
            sheet.set(
                "optimizer.min_lr", product(ratio, rate), "scheduler.params.cos_min_ratio", derived="cos_min_ratio * lr"
            )


def _is_on(sheet: FileEntries, *keys: str) -> str | None:
    return next((key for key in keys if sheet.is_on(key)), None)


def _format(sheet: FileEntries) -> None:
    bf16 = _is_on(sheet, "bf16.enabled", "bf16", "bfloat16.enabled")
    fp16 = _is_on(sheet, "fp16.enabled", "fp16")
    item = "precision.compute_dtype"
    if bf16 or fp16:
        key = bf16 or fp16 or ""
        sheet.set(item, "bfloat16" if bf16 else "float16", key)
        sheet.set("precision.params_dtype", "bfloat16" if bf16 else "float16", key)
        why = "DeepSpeed reduces gradients in the format of the parameters"
        if not sheet.says("communication_data_type"):
            sheet.set("precision.grad_reduce_dtype", "bfloat16" if bf16 else "float16", key, derived=why)
    else:
        keys = [key for key in ("bf16.enabled", "fp16.enabled") if sheet.has(key) and sheet.value(key) is False]
        if keys:
            sheet.set(item, "float32", *keys)
    autocast = _is_on(sheet, "torch_autocast.enabled")
    if autocast:
        keys = ["torch_autocast.dtype", autocast] if sheet.says("torch_autocast.dtype") else [autocast]
        sheet.set(item, dtype(sheet.value("torch_autocast.dtype", "bfloat16")), *keys)
    _scale(sheet, fp16)


def _scale(sheet: FileEntries, fp16: str | None) -> None:
    scale: Any = number(sheet.value("fp16.loss_scale", 0))
    keys = tuple(f"fp16.{name}" for name in ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis"))
    if fp16:
        sheet.set("precision.loss_scale", scale if scale else "dynamic", *keys, fp16)


def _optimizer(sheet: FileEntries) -> None:
    betas = sheet.value("optimizer.params.betas")
    if isinstance(betas, tuple) and len(betas) == 2:
        for item, beta in zip(("optimizer.beta1", "optimizer.beta2"), betas, strict=True):
            sheet.set(item, beta, "optimizer.params.betas")
    if not sheet.says("optimizer.type"):
        return
    kind = str(sheet.value("optimizer.type"))
    is_decoupled = boolean(sheet.value("optimizer.params.adam_w_mode", True)) is not False
    if kind.lower() == "adam" and is_decoupled:
        why = "DeepSpeed's Adam has adam_w_mode on: its weight decay is decoupled"
        sheet.set("optimizer.type", "adamw", "optimizer.type", "optimizer.params.adam_w_mode", derived=why)
    else:
        sheet.set("optimizer.type", kind, "optimizer.type", "optimizer.params.adam_w_mode")
