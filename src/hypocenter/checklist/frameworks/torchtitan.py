"""Keys of a torchtitan job that say something only together."""

from __future__ import annotations

from typing import Any

from hypocenter.checklist.file_entries import FileEntries, framework
from hypocenter.checklist.tables import read_toml
from hypocenter.checklist.words import number, product


@framework("torchtitan")
def settle(sheet: FileEntries) -> None:
    """Batch, schedule, sharding; sizes by model and flavor."""
    _model(sheet)
    _batch(sheet)
    _schedule(sheet)
    _sharding(sheet)
    if sheet.says("activation_checkpoint.mode"):
        sheet.set("parallel.recompute", sheet.value("activation_checkpoint.mode"), "activation_checkpoint.mode")


def _model(sheet: FileEntries) -> None:
    if sheet.says("model.name"):
        sheet.set("model.architecture", sheet.value("model.name"), "model.name")
    if sheet.says("model.flavor"):
        sheet.set("model.flavor", sheet.value("model.flavor"), "model.flavor")
        _sizes(sheet, f"{sheet.value('model.name')}", f"{sheet.value('model.flavor')}")
    float8 = next((key for key in ("float8.enable_float8_linear", "float8.enable") if sheet.value(key) is True), None)
    converters = sheet.value("model.converters")
    if float8 or (isinstance(converters, tuple) and any("float8" in str(part) for part in converters)):
        sheet.set("precision.fp8", "float8", float8 or "model.converters")


def _sizes(sheet: FileEntries, name: str, flavor: str) -> None:
    """Assume the sizes that torchtitan's code has for a model and flavor."""
    model: dict[str, Any] = read_toml("torchtitan_models").get(name, {})
    for item, value in (model.get("facts", {}) | model.get(flavor, {})).items() if flavor in model else ():
        sheet.assume(item, value, f"torchtitan's {name} {flavor}")
    if flavor not in model:
        sheet.note(f"sizes of {name} {flavor} stand in torchtitan's code: give a config.json beside it, or a recording")


def _batch(sheet: FileEntries) -> None:
    size: Any = number(sheet.value("training.global_batch_size"))
    if isinstance(size, int) and size > 0:
        sheet.set("batch.global_batch_size", size, "training.global_batch_size")
    else:
        sheet.assume("batch.accumulation_steps", 1, "as no global batch size is given")


def _schedule(sheet: FileEntries) -> None:
    total: Any = number(sheet.value("training.steps", 10000))
    if sheet.says("lr_scheduler.decay_ratio") and isinstance(total, int):
        why = "a part of constant rate before the decay, as in WSD"
        decay = f"wsd:{sheet.value('lr_scheduler.decay_type', 'linear')}"
        sheet.set("optimizer.lr_schedule", decay, "lr_scheduler.decay_ratio", "lr_scheduler.decay_type", derived=why)
        ratio: Any = number(sheet.value("lr_scheduler.decay_ratio"))
        if isinstance(ratio, (int, float)):
            sheet.set(
                "optimizer.decay_steps", round(ratio * total), "lr_scheduler.decay_ratio", derived="decay_ratio * steps"
            )
    elif sheet.says("lr_scheduler.decay_type"):
        sheet.set("optimizer.lr_schedule", sheet.value("lr_scheduler.decay_type"), "lr_scheduler.decay_type")
    if not sheet.says("lr_scheduler.decay_ratio", "lr_scheduler.total_steps") and isinstance(total, int):
        sheet.assume("optimizer.decay_steps", total, "training.steps")
    key = sheet.first("lr_scheduler.min_lr_factor", "lr_scheduler.lr_min")
    factor, rate = number(sheet.value(key)) if key else None, number(sheet.value("optimizer.lr", 8e-4))
    if key and isinstance(factor, (int, float)) and isinstance(rate, (int, float)):
        sheet.set("optimizer.min_lr", product(factor, rate), key, derived=f"{key.rpartition('.')[2]} * lr")


def _sharding(sheet: FileEntries) -> None:
    """Set sharding and data parallelism, when both degrees are given as numbers; -1 means all that are left."""
    shard = _degree(sheet, "parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree",
                    "training.data_parallel_degree")  # fmt: skip
    copies = _degree(sheet, "parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree")
    n, key = shard
    if key is None:
        return
    if n == 1:
        sheet.set("parallel.zero_stage", 0, key, derived="nothing is sharded")
    if n > 0:
        keys = (key, copies[1]) if copies[1] else (key,)
        sheet.set("parallel.data", n * max(1, copies[0]), *keys, derived=" * ".join(k.rpartition(".")[2] for k in keys))


def _degree(sheet: FileEntries, *keys: str) -> tuple[int, str | None]:
    key = sheet.first(*keys)
    found = number(sheet.value(key)) if key else None
    return (found if isinstance(found, int) else -1), key
