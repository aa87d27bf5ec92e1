"""Keys of accelerate's configuration that say something only together."""

from __future__ import annotations

from hypocenter.checklist.file_entries import FileEntries, framework
from hypocenter.checklist.words import boolean

_STRATEGY, _RESHARD = "fsdp_config.fsdp_sharding_strategy", "fsdp_config.fsdp_reshard_after_forward"
_FILE = "deepspeed_config.deepspeed_config_file"
_STAGES = {"full_shard": 3, "1": 3, "shard_grad_op": 2, "2": 2, "no_shard": 0, "3": 0, "hybrid_shard": 3, "4": 3,
           "hybrid_shard_zero2": 2, "5": 2}  # fmt: skip


@framework("accelerate")
def settle(sheet: FileEntries) -> None:
    """What FSDP shards, recomputes, and which further file there is."""
    kind = str(sheet.value("distributed_type", "")).upper()
    why = "what FSDP shards, in the words of ZeRO"
    if sheet.says(_STRATEGY):
        stage = _STAGES.get(str(sheet.value(_STRATEGY)).lower(), 3)
        sheet.set("parallel.zero_stage", stage, _STRATEGY, "distributed_type", derived=why)
    elif kind == "FSDP":
        after = boolean(sheet.value(_RESHARD, True))
        sheet.set("parallel.zero_stage", 2 if after is False else 3, "distributed_type", _RESHARD, derived=why)
    elif kind in ("NO", "MULTI_GPU", "MULTI_NPU", "MULTI_CPU"):
        sheet.set("parallel.zero_stage", 0, "distributed_type", derived="nothing is sharded")
    key = "fsdp_config.fsdp_activation_checkpointing"
    if sheet.says(key):
        sheet.set("parallel.recompute", "full" if boolean(sheet.value(key)) is True else "none", key)
    if sheet.says(_FILE):
        sheet.note(f"the DeepSpeed configuration {sheet.value(_FILE)} is not read: give it as a further file")
    if str(sheet.value("mixed_precision", "")).lower() == "fp16":
        sheet.set("precision.loss_scale", "dynamic", "mixed_precision")
    if sheet.says("dynamo_config.dynamo_backend"):
        word = str(sheet.value("dynamo_config.dynamo_backend"))
        sheet.set("other.compile", word.lower() != "no", "dynamo_config.dynamo_backend")
