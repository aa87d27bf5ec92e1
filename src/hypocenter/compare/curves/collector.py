"""From points in the order of a log to a Curve: later beats earlier, and nothing grows without a bound."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from hypocenter.compare.curves.curve import Curve, Series, Steps, Values

MOST_POINTS = 20_000_000  # of one file: 320 MB of memory; a year of one step a second
MOST_SERIES = 2_000  # names of one file: beyond it is no log of scalars
_STEP_AT_MOST = 2**53  # beyond it a float cannot count
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
LINE_BYTES = 1 << 20  # longer lines are cut: no logger writes them


class Collector:
    """Takes (step, label, value) as a reader finds them; `curve` sorts, cuts what a resumed run wrote again, names."""

    def __init__(
        self, source: str, kind: str, *, counts_from: int | None, means: Iterable[str] = (), on: str = ""
    ) -> None:
        """Args: `counts_from`: the number this kind of log gives its first step; `means`: names (ours) of quantities
        that it prints as the mean over the steps since the line before; `on`: what looks at the ranks of a
        recording."""
        self.on = on
        self.source, self.kind, self.counts_from = source, kind, counts_from
        self.means = frozenset(means)
        self.digests: dict[int, str] = {}
        self._steps: dict[str, array[int]] = {}
        self._values: dict[str, array[float]] = {}
        self._problems: dict[str, int] = {}
        self._n_points = 0

    @property
    def is_full(self) -> bool:
        """Whether further points would be dropped: a reader may stop."""
        return self._n_points >= MOST_POINTS

    def add(self, step: int, label: str, value: float) -> None:
        """Add one entry. An absurd step, and entries beyond the limits, are left out and noted as a problem."""
        if not 0 <= step <= _STEP_AT_MOST:
            self.problem("an entry whose step is negative or absurd was left out")
            return
        if self.is_full:
            self.problem(f"only the first {MOST_POINTS:,} entries were read")
            return
        if label not in self._steps:
            if len(self._steps) >= MOST_SERIES:
                self.problem(f"only the first {MOST_SERIES:,} names were read")
                return
            self._steps[label], self._values[label] = array("q"), array("d")
        self._steps[label].append(step)
        self._values[label].append(value)
        self._n_points += 1

    def problem(self, text: str) -> None:
        """Note what is wrong with the log; the same text is kept once, with how often it was."""
        if len(self._problems) < 100 or text in self._problems:  # a stranger's file decides how many texts there are
            self._problems[text] = self._problems.get(text, 0) + 1

    def curve(self) -> Curve:
        """Return the curve of all entries that were added so far."""
        best = self._best_labels()
        series = {name: self._series(name, label) for name, label in best.items()}
        if self.digests and self.counts_from:
            self.digests = {step - self.counts_from: digest for step, digest in self.digests.items()}
        return Curve(
            source=self.source, kind=self.kind, series=series, counts_from=self.counts_from, digests=self.digests,
            problems=tuple(text if n == 1 else f"{text} (×{n:,})" for text, n in self._problems.items()),
        )  # fmt: skip

    def _best_labels(self) -> dict[str, str]:
        found: dict[str, tuple[int, str]] = {}
        for label in self._steps:
            name, rank = canonical(label)
            if name not in found or rank < found[name][0]:
                found[name] = (rank, label)
        return {name: label for name, (_, label) in found.items()}

    def _series(self, name: str, label: str) -> Series:
        steps = np.frombuffer(self._steps[label], dtype=np.int64)
        values = np.frombuffer(self._values[label], dtype=np.float64)
        steps, values, n_replaced = last_attempt(steps, values)
        if n_replaced:
            self.problem(
                f"{n_replaced:,} entries of {label!r} were logged again later (a resumed run): the later count"
            )
        return Series(
            name=name, steps=steps - (self.counts_from or 0), values=values, label=label, is_mean=name in self.means
        )


def last_attempt(steps: Steps, values: Values) -> tuple[Steps, Values, int]:
    """Drop entries that a resumed run counted again; return steps and values that are left, and how many were dropped.

    An entry is dropped if any later entry has the same or a smaller step: from where a run was resumed, its second
    history is the true one, also where the first one went further.
    """
    if len(steps) == 0:
        return steps.copy(), values.copy(), 0
    smallest_later = np.minimum.accumulate(steps[::-1])[::-1]
    keep = np.ones(len(steps), dtype=bool)
    keep[:-1] = steps[:-1] < smallest_later[1:]
    return steps[keep].copy(), values[keep].copy(), int(len(steps) - keep.sum())


def number(value: object) -> float | None:
    """Return a number, bool or text of a number (JSON has none for NaN) as a float; None for anything else."""
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str) and len(value) <= 64:
        try:
            return float(value)
        except ValueError:
            return None
    return None


def whole(value: object) -> int | None:
    """Return a step number, given as an int or as a whole float or text, as an int; None for anything else."""
    found = number(value)
    if found is None or not math.isfinite(found) or found != int(found):
        return None
    return int(found)


def plain(label: str) -> str:
    """Return the label in lower case, other characters as one underscore: "Loss/train" becomes "loss_train"."""
    return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")


def canonical(label: str) -> tuple[str, int]:
    """Return our name for a log's label, and how good a match it is (0 best); the label and 0 if it is none of ours."""
    return _BY_NAME.get(plain(label), (label, 0))


def is_step(label: str) -> int | None:
    """Return how good a name for the step column this is (0 best); None for a name that is none."""
    name = "_step" if label.strip().lower() == "_step" else plain(label)
    return STEP_NAMES.index(name) if name in STEP_NAMES else None


def lines(path: Path) -> Iterator[str]:
    """Yield each line without its end; broken UTF-8 becomes �, a line over a megabyte is cut. Raises OSError.

    Progress bars write `\\r` inside a line: what is behind the last one is what a person sees.
    """
    with path.open("rb") as file:
        cut = False
        while chunk := file.readline(LINE_BYTES):
            ended = chunk.endswith(b"\n")
            if not cut:
                yield chunk.decode("utf-8", "replace").rstrip("\r\n")
            cut = not ended
