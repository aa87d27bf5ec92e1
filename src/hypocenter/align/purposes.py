"""What each recording is for, and with which options of `hypocenter run` it is made.

steps      the first steps in full; the baseline with its noise floor and its initial weights
again      the same once more: is it equal to the bit?
updates    what both optimizers get and make of it in the first two steps, as values
fed        the same of the candidate, its optimizer fed with the baseline's gradients
frozen     learning rate 0 for many steps
loose      the first steps of the baseline without determinism: does that change anything here?
loose-2    the same once more: or is only the deterministic way another one?
frozen-repeat-N, repeat-N    the baseline once more, as far off as good runs may be
long       the programs as they are
batches-N  the baseline until step N, its batches kept
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypocenter.align.plan import Plan, SideName

IN_FULL = ("--level", "modules", "--sketch", "--param-schedule", "every=1")
UPDATED = 2
"""Steps whose updates are kept as values: the first, and one that has momenta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A recording that a stage asks for."""

    side: SideName
    purpose: str
    options: tuple[str, ...]
    weights: str = ""  # file that the program starts from


def need(
    plan: Plan, side: SideName, purpose: str, *, start_from: str = "", gradients: str = "",
    parameters: Sequence[str] = (),
) -> Need:  # fmt: skip
    """Describe the recording that a side makes for a purpose.

    Args:
        start_from: path of initial weights that are not the program's own.
        gradients: recording whose gradients the optimizer is fed with.
        parameters: ends of the names of parameters, where only these are to be recorded.
    """
    kind = purpose.rstrip("0123456789").rstrip("-")
    options = (*_OPTIONS[kind](plan, side), *_length(plan, kind, purpose))
    options += ("--initial-weights", start_from) if start_from else ()
    options += ("--gradients-from", gradients) if gradients else ()
    if kind in ("updates", "fed"):  # what modules take in and give is far larger than parameters
        options += tuple(word for name in parameters or _ENDINGS for word in ("--site", f"*{name}"))
    return Need(side=side, purpose=purpose, options=options, weights=start_from)


def _exact(plan: Plan) -> tuple[str, ...]:
    """Return the options that make a program do the same each time."""
    return (*(("--deterministic",) if plan.stages.deterministic else ()), *_drawn(plan))


def _drawn(plan: Plan) -> tuple[str, ...]:
    return ("--seed", str(plan.stages.seed), *(() if plan.stages.dropout else ("--no-dropout",)))


def _rate(plan: Plan) -> tuple[str, ...]:
    return () if plan.stages.lr is None else ("--impose-lr", f"{plan.stages.lr:g}")


def _steps(plan: Plan, side: SideName) -> tuple[str, ...]:
    own = ("--calibrate", "every=1", "--save-initial-weights") if side == "baseline" else ()
    return (*IN_FULL, "--save-batches", "1", *own, *_exact(plan), *_rate(plan))


def _again(plan: Plan, side: SideName) -> tuple[str, ...]:
    return (*IN_FULL, *_exact(plan), *_rate(plan))


def _loose(plan: Plan, side: SideName) -> tuple[str, ...]:
    return (*IN_FULL, *_drawn(plan), *_rate(plan))


def _frozen(plan: Plan, side: SideName) -> tuple[str, ...]:
    return (*_exact(plan), "--impose-lr", "0")


def _frozen_repeat(plan: Plan, side: SideName) -> tuple[str, ...]:
    return (*_drawn(plan), "--impose-lr", "0")


def _long(plan: Plan, side: SideName) -> tuple[str, ...]:
    return _drawn(plan)


def _updates(plan: Plan, side: SideName) -> tuple[str, ...]:
    steps = f"0-{UPDATED - 1}"
    return ("--level", "tensors", "--schedule", steps, "--param-schedule", steps, *_exact(plan), *_rate(plan))


_ENDINGS = ("weight", "bias", "gamma", "beta", "embedding_table")  # of names of parameters, where nobody knows better


def _batches(plan: Plan, side: SideName) -> tuple[str, ...]:
    return _drawn(plan)


_OPTIONS = {
    "steps": _steps, "again": _again, "loose": _loose, "fed": _updates, "updates": _updates, "frozen": _frozen,
    "frozen-repeat": _frozen_repeat, "long": _long, "repeat": _long, "batches": _batches,
}  # fmt: skip


def _length(plan: Plan, kind: str, purpose: str) -> tuple[str, ...]:
    stages = plan.stages
    lengths = {
        "frozen": stages.frozen_steps, "frozen-repeat": stages.frozen_steps, "long": stages.long_steps,
        "repeat": stages.long_steps, "updates": UPDATED, "fed": UPDATED,
    }  # fmt: skip
    if kind == "batches":
        last = int(purpose.rpartition("-")[2])
        return ("--save-batches", str(last + 1), "--stop-after-step", str(last))
    return ("--stop-after-step", str(lengths.get(kind, stages.steps) - 1))
