"""TrainingArguments of transformers' Trainer as a file."""

from __future__ import annotations

from hypocenter.checklist.catalogue import Source, reader
from hypocenter.checklist.checklist import Given
from hypocenter.checklist.nested import entries

_KEYS = {
    "per_device_train_batch_size",
    "learning_rate",
    "num_train_epochs",
    "gradient_accumulation_steps",
    "lr_scheduler_type",
    "max_steps",
    "warmup_ratio",
    "weight_decay",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "micro_batch_size",
    "sequence_len",
    "base_model",
    "num_epochs",
    "lr_scheduler",
    "model_name_or_path",
    "output_dir",
    "cutoff_len",
    "optim",
    "finetuning_type",
    "adam_beta1",
    "bf16",
    "fp16",
    "logging_steps",
    "save_steps",
}


def _accepts(source: Source) -> float:
    n = len(source.keys & _KEYS) if source.path.suffix.lower() != ".toml" else 0
    return 0.0 if n < 2 else 0.7 if n < 4 else 0.8


@reader("training-arguments", accepts=_accepts)
def read(source: Source) -> Given:
    """TrainingArguments as JSON or YAML (`args.to_json_string()`), with the keys of axolotl and LLaMA-Factory too."""
    assert source.node is not None
    found = tuple(entries(source.node, source.name))
    return Given(kind="training-arguments", table="training_arguments", entries=found)
