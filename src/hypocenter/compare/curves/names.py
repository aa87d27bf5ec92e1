"""What logs call a quantity, and what we call it."""

from __future__ import annotations

import re

CANONICAL: dict[str, tuple[str, ...]] = {
    "loss": (
        "loss", "lm_loss", "train_loss", "training_loss", "train_lm_loss", "reduced_train_loss", "train_loss_step",
        "loss_train", "lm_loss_training_lm_loss", "loss_metrics_global_avg_loss", "global_avg_loss", "batch_loss",
        "train_train_loss", "train_cross_entropy_loss", "total_loss", "tot_loss", "loss_total", "step_loss",
    ),
    "grad_norm": (
        "grad_norm", "global_norm", "gradient_norm", "train_grad_norm", "train_global_norm", "global_grad_norm",
        "grad_norm_grad_norm", "total_grad_norm", "optim_total_grad_norm", "gnorm", "total_norm",
        "train_gradient_norm",
    ),
    "lr": (
        "lr", "learning_rate", "train_lr", "train_learning_rate", "learning_rate_learning_rate", "lr_adamw",
        "lr_adamw_pg1", "lr_adam", "lr_sgd", "optim_learning_rate_group0",
    ),
    "loss_scale": ("loss_scale", "loss_scale_loss_scale", "train_loss_scale", "scaler_scale", "scale"),
    "eval_loss": (
        "eval_loss", "val_loss", "validation_loss", "valid_loss", "eval_eval_loss", "test_loss",
        "lm_loss_validation_lm_loss_validation",
    ),
    "params_norm": ("params_norm", "param_norm", "params_norm_params_norm", "weight_norm"),
    "batch_size": ("batch_size", "global_batch_size", "batch_size_batch_size"),
    "n_zero_grads": ("num_zeros", "num_zeros_num_zeros"),
    "n_skipped": ("number_of_skipped_iterations", "skipped_iterations"),
    "n_nan": ("number_of_nan_iterations", "nan_iterations"),
}  # fmt: skip
"""Canonical name to the names it has elsewhere, best first: HF Trainer, Megatron-LM (text and TensorBoard),
MindFormers, Lightning, NeMo, torchtitan, DeepSpeed, OLMo. Written as `plain` gives them."""

STEP_NAMES = ("step", "global_step", "trainer_global_step", "train_global_step", "iteration", "iter", "steps", "_step")
"""Names of the column that counts steps, best first. W&B's `_step` is last: it counts calls of log."""

_BY_NAME = {name: (canonical, rank) for canonical, names in CANONICAL.items() for rank, name in enumerate(names)}


def plain(label: str) -> str:
    """Lower case, with every run of other characters as one underscore: "Loss/train" is "loss_train"."""
    return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")


def canonical(label: str) -> tuple[str, int]:
    """Our name for a log's label, and how good a match it is (0 best); the label itself and 0 if it is none of ours."""
    return _BY_NAME.get(plain(label), (label, 0))


def is_step(label: str) -> int | None:
    """How good a name for the step column this is (0 best); None for a name that is none."""
    name = "_step" if label.strip().lower() == "_step" else plain(label)
    return STEP_NAMES.index(name) if name in STEP_NAMES else None
