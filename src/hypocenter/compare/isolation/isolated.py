"""What `isolate` says of each module, fed with the baseline's inputs: its own error, with nothing upstream in it.

What rounding alone does to a module: the same computation with inputs and outputs off by an ulp of the format.

As in TTrace (arXiv 2506.09280): τ = max over samples of ‖f(x∘(1 + u·r)) - f(x)‖ / ‖f(x)‖, r uniform in (-1, 1); the
output is rounded too, so that what copies its input has a floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from hypocenter.compare.comparison import Verdict
from hypocenter.compare.values.bits import Array
from hypocenter.formats import FORMATS, format_of

OwnVerdict = Literal["own", "not-own", "cannot-tell"]
BUDGET, BUDGET_OF_SHORT = 4.0, 2.0
"""Times the floor that is still noise, of float32 and longer, and of short formats. A real change of the order of sums
makes up to 0.94 of a perturbed replay in bfloat16 and up to 1.36 in float32 (replay.calibration); no format borrows
another's."""
_SHORT = 2.0**-16  # floors above it are made by short formats
SAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated:
    """One module at one step and micro-batch."""

    site: str  # in the baseline's names
    candidate_site: str
    kind: str  # class in the candidate
    port: str  # where the error is largest: out[0], grad_in[0], weight.grad
    call: int = 0
    step: int = 0
    microbatch: int = 0
    error: float | None = None  # relative L2, of the module alone; None: nobody can tell
    floor: float | None = None  # the same of rounding alone
    verdict: OwnVerdict = "cannot-tell"
    innermost: bool = False  # no module within it has an error of its own
    how: str = ""  # "executed", "re-executed", "inputs equal"
    why: str = ""
    order: int = 0
    times: float = field(init=False)  # the error in units of the floor

    def __post_init__(self) -> None:
        times = 0.0 if not self.error else self.error / self.floor if self.floor else math.inf
        object.__setattr__(self, "times", times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The error of each module alone, fed with the baseline's inputs. Errors are relative L2."""

    schema: Literal["hypocenter.isolation/1"] = "hypocenter.isolation/1"
    baseline: str = ""
    candidate: str = ""
    status: Verdict = "cannot-tell"  # diverged: some module has an error of its own
    sentence: str = ""
    modules: Annotated[tuple[Isolated, ...], Meta(description="innermost culprits first, the worst first")] = ()
    notes: tuple[str, ...] = ()


def judged(error: float | None, floor: float | None) -> OwnVerdict:
    """Say whether an error is a module's own, that is beyond noise; None (or NaN) cannot be told."""
    if error is None or floor is None or math.isnan(error):
        return "cannot-tell"
    return "own" if error > noise_of(floor) else "not-own"


def noise_of(floor: float) -> float:
    """Return up to which error a module with this floor still does what it should."""
    return floor * (BUDGET_OF_SHORT if floor > _SHORT else BUDGET)


def ranked(modules: Iterable[Isolated]) -> list[Isolated]:
    """Sort modules: innermost culprits, then what contains them, then what nobody can tell, the rest; worst first."""
    found = list(modules)
    guilty = {one.site for one in found if one.verdict == "own"}
    marked = [replace(one, innermost=one.verdict == "own" and not _has_below(one.site, guilty)) for one in found]
    order = {"own": 1, "cannot-tell": 2, "not-own": 3}
    return sorted(marked, key=lambda one: (0 if one.innermost else order[one.verdict], -one.times, one.order))


def answer(modules: Iterable[Isolated], *, baseline: str, candidate: str, notes: Sequence[str] = ()) -> Isolation:
    """Put the judged modules into order, and say the answer in one sentence."""
    found = ranked(modules)
    guilty = [one for one in found if one.innermost]
    unknown = [one for one in found if one.verdict == "cannot-tell"]
    status: Verdict = "diverged" if guilty else "cannot-tell" if unknown or not found else "same"
    return Isolation(
        baseline=baseline, candidate=candidate, status=status, sentence=_sentence(found, guilty, unknown),
        modules=tuple(found), notes=tuple(notes),
    )  # fmt: skip


def _has_below(site: str, guilty: Iterable[str]) -> bool:
    within = f"{site}." if site else ""
    return any(other != site and other.startswith(within) for other in guilty)


def _sentence(found: Sequence[Isolated], guilty: Sequence[Isolated], unknown: Sequence[Isolated]) -> str:
    if not found:
        return "cannot tell: no module has recorded inputs and outputs in both"
    if guilty:
        worst = guilty[0]
        others = len({one.site for one in guilty}) - 1
        more = f"; {others} more with errors of their own" if others else ""
        return (
            f"diverged: {worst.site or 'the model itself'} is off by {worst.error:.2g} by itself at {worst.port} "
            f"(floor {worst.floor:.2g}), given what the baseline's took in{more}"
        )
    n = len({one.site for one in found})
    if unknown:
        some = unknown[0].site or "the model itself"
        return (
            f"cannot tell: of {n} modules {len({one.site for one in unknown})} cannot be judged, such as {some}; "
            "none of the others has an error of its own"
        )
    return f"same: none of {n} modules has an error of its own"


def unit(dtypes: Iterable[str]) -> float:
    """Return the relative rounding error of the coarsest of these formats; formats that are no floats do not count."""
    return max((form.noise for name in dtypes if (form := format_of(name))), default=FORMATS["float32"].noise)


def rounding_floor(run: Callable[[Array], Array], x: Array, by: float, *, is_index: bool = False) -> float:
    """Return the relative L2 error that slightly perturbed inputs and outputs make; the largest of SAMPLES.

    Args:
        run: the module.
        x: its input.
        by: the unit.
        is_index: the input is whole numbers that are looked up: left alone.
    """
    rng = np.random.default_rng(0)  # the same floor every time
    y = run(x)
    found = 0.0
    for _ in range(SAMPLES):
        moved = x if is_index else x * (1.0 + by * rng.uniform(-1.0, 1.0, x.shape))
        other = run(moved)
        found = max(found, relative(other * (1.0 + by * rng.uniform(-1.0, 1.0, other.shape)), y))
    return found


def relative(y: Array, of: Array) -> float:
    """Return ‖y - of‖ / ‖of‖; infinite where only one side is finite, or `of` is zero and `y` is not."""
    with np.errstate(all="ignore"):
        gap = np.where((y == of) | (np.isnan(y) & np.isnan(of)), 0.0, y - of)
        size = float(np.linalg.norm(np.where(np.isfinite(of), of, 0.0)))
        apart = float(np.linalg.norm(gap))
    if not np.isfinite(apart):
        return float("inf")
    return 0.0 if apart == 0.0 else apart / size if size else float("inf")
