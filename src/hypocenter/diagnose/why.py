"""The sentences of evidence: numbers that the reader can check, each line true on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hypocenter.diagnose.evidence import Evidence, OpFacts, TensorFacts
from hypocenter.diagnose.numbers import above, listed, short
from hypocenter.diagnose.operators import subject
from hypocenter.diagnose.rulings import Overflow
from hypocenter.in_words import counted
from hypocenter.optrace import UNSEEN, UNWRITTEN

MIN_POINTS = 4  # fewer make a line through anything
MIN_BITS = 1.0  # growth below a factor of two is not worth a sentence
MIN_R2 = 0.8  # share of the variance of log2|max| that a straight line must explain


def inputs(evidence: Evidence) -> tuple[str, ...]:
    """Say "inputs were finite (self |max| 212, other |max| 388)"; masks are named as what they are."""
    origin = evidence.origin
    if origin is None or evidence.leaf is not None:
        return ()
    shown = [_sized(t) for t in origin.inputs if t.dtype.startswith(("float", "bfloat", "complex"))][:4]
    if not shown:
        return ()
    masks = [t.name for t in origin.inputs if t.summary.n_nonfinite]
    head = "inputs were finite" if not masks else f"inputs were finite but for constants of the program in {masks[0]}"
    return (f"{head} ({', '.join(shown)})",)


def exceeded(evidence: Evidence, found: Overflow) -> tuple[str, ...]:
    """Say "in float64 the largest value is 1.1e5 > 65504, the largest float16"."""
    size = above(found.actual, found.limit)
    if found.actual <= found.limit:
        return (
            f"in float64 the result is {short(found.actual)}; what is added up on the way does not fit {found.dtype}",
        )
    if found.confidence == "proven":
        return (f"in float64 the largest value is {size}, the largest {found.dtype}",)
    return (f"the operands allow up to {size}, the largest {found.dtype}; it was not executed again",)


def not_finite_in_float64(evidence: Evidence) -> tuple[str, ...]:
    """Say that no format would have helped, or why it was not executed again."""
    if not evidence.float64.ran:
        return (f"it was not executed again: {evidence.float64.why_not}",) if evidence.float64.why_not else ()
    return ("in float64 it is not finite either: no format would have helped",)


def common(evidence: Evidence) -> tuple[str, ...]:
    """Say what is worth saying whatever the cause: how many, does it repeat, what hid it, what came before."""
    return (
        *_unused(evidence),
        *_unseen(evidence),
        *_counted(evidence),
        *_at_scale_1(evidence),
        *_repeats(evidence),
        *_hidden(evidence),
        *_turned_nan(evidence),
        *_grown(evidence),
        *_samples(evidence),
        *_replay(evidence),
    )


def _unused(evidence: Evidence) -> tuple[str, ...]:
    return ("the program threw this loss away and went on without it",) * (evidence.trigger == "unused-loss")


def _unseen(evidence: Evidence) -> tuple[str, ...]:
    """Say between which operators something ran that no dispatcher showed; () when all was seen."""
    origin, facts = evidence.origin, evidence.facts
    if origin is None or origin.op not in (UNSEEN, UNWRITTEN) or "unseen_before" not in facts:
        return ()
    what = "it ran" if origin.op == UNSEEN else "it was made room for"
    after = f"after {facts['unseen_after']} and " if facts.get("unseen_after") else ""
    return (f"{what} {after}before {facts['unseen_before']} read what was there",)


def place(op: OpFacts) -> str:
    """Name an operator with its line: "the product (model.py:12)"."""
    where = f" ({op.source.file.rsplit('/', 1)[-1]}:{op.source.line})" if op.source is not None else ""
    return subject(op) + where


def leaf_name(evidence: Evidence) -> str:
    """Name the tensor that was bad before any operation, as the user finds it: `batch[features]`, `head.weight`."""
    if evidence.leaf is None:
        return ""
    name = evidence.leaf.name or "a tensor"
    if evidence.leaf_kind != "batch":
        return name
    if name.startswith(("[", ".")):
        return f"batch{name}"
    return f"batch[{name}]" if name.isidentifier() and name != "batch" else name


def _sized(tensor: TensorFacts) -> str:
    s = tensor.summary
    size = "empty" if not s.n else f"|max| {short(s.absmax)}"
    return f"{tensor.name} {size}"


def _counted(evidence: Evidence) -> tuple[str, ...]:
    if not evidence.chips or evidence.leaf is not None:
        return ()
    n = 1
    for size in evidence.index_shape:
        n *= size
    first = f", first at {list(evidence.indices[0])}" if evidence.indices and evidence.indices[0] else ""
    total = f" of {counted(n, 'value')}" if evidence.index_shape else ""
    return (f"{', '.join(evidence.chips)}{total}{first}",)


def _at_scale_1(evidence: Evidence) -> tuple[str, ...]:
    measured = evidence.facts.get("finite_at_scale_1")
    if not isinstance(measured, (int, float)):
        return ()
    if measured:
        return ("the same step is finite at loss scale 1",)
    return ("at loss scale 1 the step is not finite either: the scale is not the cause",)


def _repeats(evidence: Evidence) -> tuple[str, ...]:
    lines: list[str] = []
    if evidence.again.ran and not evidence.again.repeats:
        lines.append("executed again on the same device and inputs it does not give the same bits each time")
    elif evidence.again.ran and evidence.again.equal_bits:
        lines.append("executed again on the same device it gives the same bits")
    if evidence.cpu.ran and not evidence.cpu.finite:
        lines.append("the CPU is not finite there either")
    for again, where in ((evidence.float64, "in float64"), (evidence.cpu, "on the CPU")):
        if again.part:
            lines.append(f"{where} {again.part} of the result were done again, those with bad elements first")
    if evidence.cpu.why_not.startswith("not done again"):
        lines.append(evidence.cpu.why_not)
    return tuple(lines)


def _hidden(evidence: Evidence) -> tuple[str, ...]:
    if evidence.killed_by is None:
        return ()
    how = "turned it into exact zeros" if zeroed(evidence) else "hid it"
    return (f"killed by {place(evidence.killed_by)}, which {how}: no NaN check sees it",)


def zeroed(evidence: Evidence) -> bool:
    """Return whether what hid the overflow made exact zeros of it (x / inf), rather than masking it."""
    measured = evidence.facts.get("zeroed")
    if isinstance(measured, (int, float)):
        return bool(measured)
    outputs = evidence.killed_by.outputs if evidence.killed_by is not None else ()
    return any(o.summary.n and o.summary.n_zero == o.summary.n_hist > 0 for o in outputs)


def _turned_nan(evidence: Evidence) -> tuple[str, ...]:
    factor = evidence.multiplier_zero
    if factor is None or evidence.leaf is not None or factor.phase == "backward":
        return ()
    return (f"{place(factor)} then multiplied it by exactly 0: 0 × inf is NaN",)


def _grown(evidence: Evidence) -> tuple[str, ...]:
    found, of_loss = growth(evidence.history), loss_growth(evidence.losses)
    return tuple(each.sentence() for each in (found, of_loss) if each is not None)


def _samples(evidence: Evidence) -> tuple[str, ...]:
    if not evidence.samples or not evidence.n_samples:
        return ()
    n = len(evidence.samples)
    head = f"sample{'s' if n > 1 else ''} {listed(evidence.samples)} of {evidence.n_samples}{in_dataset(evidence)}"
    if evidence.samples_confirmed:
        rest = "as usual" if evidence.trigger == "spike" else "finite"
        return (f"{head}: without {'them' if n > 1 else 'it'} the step is {rest}",)
    return (head,) if n < evidence.n_samples else ()


def in_dataset(evidence: Evidence) -> str:
    """Return " (dataset[1234])": where a DataLoader took the samples from; "" if that is not known."""
    indices = evidence.dataset_indices  # in the order of the samples
    shown = ", ".join(str(index) for index in indices[:8]) + (", …" if len(indices) > 8 else "")
    return f" (dataset[{shown}])" if indices else ""


def _replay(evidence: Evidence) -> tuple[str, ...]:
    if evidence.traced_live:
        return (f"found by tracing a later step live: {evidence.why_not}" if evidence.why_not else "traced live",)
    return (evidence.why_not,) if evidence.why_not and not evidence.reproduced else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Exponential growth of |max|: it doubles every `doubling_steps` since `since_step`."""

    since_step: int
    doubling_steps: float
    bits: float  # log2 of the total growth

    def sentence(self) -> str:
        """Say the growth in words."""
        pace = f"every {self.doubling_steps:.0f} steps" if self.doubling_steps >= 1.5 else "every step"
        return f"|max| had doubled {pace} since step {self.since_step}"


def growth(history: Sequence[tuple[int, float]]) -> Growth | None:
    """Fit log2|max| over steps from its last minimum on; None unless the growth is real."""
    points = [(step, math.log2(value)) for step, value in sorted(history) if 0 < value < math.inf]
    if len(points) < MIN_POINTS:
        return None
    low = min(range(len(points)), key=lambda i: (points[i][1], -i))
    tail = points[low:]
    if len(tail) < MIN_POINTS or tail[-1][1] - tail[0][1] < MIN_BITS:
        return None
    slope, r2 = _line(tail)
    if slope <= 0 or r2 < MIN_R2:
        return None
    return Growth(since_step=tail[0][0], doubling_steps=1 / slope, bits=tail[-1][1] - tail[0][1])


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    sxx = sum((x - mean_x) ** 2 for x, _ in points)
    syy = sum((y - mean_y) ** 2 for _, y in points)
    sxy = sum((x - mean_x) * (y - mean_y) for x, y in points)
    if sxx == 0 or syy == 0:
        return 0.0, 0.0
    return sxy / sxx, sxy * sxy / (sxx * syy)


LOSS_FACTOR = 1024.0  # no healthy run loses so much of what it had learned


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGrowth:
    """The loss just before, against the smallest one until then."""

    smallest: tuple[int, float]  # step, loss
    last: tuple[int, float]

    def sentence(self) -> str:
        """Say the growth in words."""
        (step, low), (last, high) = self.smallest, self.last
        return f"the loss had grown from {short(low)} at step {step} to {short(high)} at step {last}"


def loss_growth(losses: Sequence[tuple[int, float]]) -> LossGrowth | None:
    """Return how the last losses before a failure had grown; None unless by LOSS_FACTOR (training diverged)."""
    known = [(step, abs(loss)) for step, loss in losses if math.isfinite(loss) and loss != 0.0]
    if len(known) < 2:
        return None
    smallest, last = min(known, key=lambda point: point[1]), known[-1]
    return LossGrowth(smallest=smallest, last=last) if last[1] >= LOSS_FACTOR * max(smallest[1], 1e-3) else None
