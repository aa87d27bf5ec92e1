"""Configurations of DeepSpeed."""

from __future__ import annotations

from dataclasses import replace

from hypocenter.checklist.catalogue import Source, reader
from hypocenter.checklist.checklist import Given
from hypocenter.checklist.nested import entries

_OWN = {"zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer"}
_KEYS = {
    "train_batch_size",
    "gradient_clipping",
    "steps_per_print",
    "wall_clock_breakdown",
    "gradient_accumulation_steps",
    "optimizer",
    "scheduler",
    "fp16",
    "bf16",
    "activation_checkpointing",
}


def _accepts(source: Source) -> float:
    if source.path.suffix.lower() == ".toml" or not source.keys:
        return 0.0
    if source.keys & _OWN:
        return 0.9
    return 0.65 if len(source.keys & _KEYS) >= 2 and (source.inside("fp16") or source.inside("optimizer")) else 0.0


@reader("deepspeed-json", accepts=_accepts)
def read(source: Source) -> Given:
    """A configuration of DeepSpeed; what is "auto" in it is left to the Trainer."""
    assert source.node is not None
    found = [
        replace(entry, value=None) if entry.value == "auto" else entry for entry in entries(source.node, source.name)
    ]
    n = sum(entry.spelled.endswith(": auto") for entry in found)
    notes = (f'{source.name}: {n} values are "auto": they are those of the TrainingArguments',) if n else ()
    return Given(kind="deepspeed-json", table="deepspeed", entries=tuple(found), notes=notes)
