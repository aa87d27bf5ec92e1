"""What of a step other tools draw, name by name."""

from __future__ import annotations

from hypocenter.nouns import StepRecord


def numbers_of(step: StepRecord) -> dict[str, float]:
    """Return a step's numbers: loss, grad_norm, loss_scale and lr where known; then times and counts."""
    known = {"loss": step.loss, "grad_norm": step.grad_norm, "loss_scale": step.loss_scale, "lr": step.lr}
    return {
        **{name: value for name, value in known.items() if value is not None},
        "step_ms": step.step_ms,
        "tap_ms": step.tap_ms,
        "n_bad_grads": float(step.n_bad_grads),
        "skipped": float(step.skipped),
    }


def is_bad(step: StepRecord) -> bool:
    """Return whether something of the step was not finite, or a failure was looked into."""
    return bool(step.n_bad_grads or step.finding)


class Course:
    """The latest step, and how many there were: for tools that get a point now and then, not each step.

    Attributes:
        latest: the step taken last; None before the first.
    """

    def __init__(self) -> None:
        self.latest: StepRecord | None = None
        self._n_steps = self._n_bad = self._n_skipped = 0

    def take(self, step: StepRecord) -> None:
        """Count one step."""
        self.latest = step
        self._n_steps += 1
        self._n_bad += is_bad(step)
        self._n_skipped += step.skipped

    def numbers(self) -> dict[str, float]:
        """Return the numbers of the latest step, its number, and `n_steps`, `n_bad_steps`, `n_skipped_steps`."""
        if self.latest is None:
            return {}
        counts = {"n_steps": self._n_steps, "n_bad_steps": self._n_bad, "n_skipped_steps": self._n_skipped}
        return {
            "step": float(self.latest.step),
            **numbers_of(self.latest),
            **dict(zip(counts, map(float, counts.values()), strict=True)),
        }
