"""What of a run was looked at: losses, gradients, outputs; and whether its parameters moved."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.detect.misuse import STILL, TRAINED
from hypocenter.detect.whole import Looked
from hypocenter.diagnose.arrow_scalars import arrow
from hypocenter.diagnose.rows import Recorded, holds_values, scanned
from hypocenter.nouns import Reading, StepRecord

_PARTS = {"forward": "outputs", "backward": "gradients", "grad": "gradients", "param": "parameters"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Still:
    """A count of parameters, as the end of a rank's run left it. `site`: TRAINED or STILL."""

    site: str
    n: int


def still_in(readings: Iterable[Reading]) -> list[Still]:
    """The counts among rows."""
    return [Still(site=r.site, n=int(r.summary.sum)) for r in readings if r.site in (TRAINED, STILL)]


def looked_at(recorded: Recorded, records: Mapping[tuple[int, int], StepRecord], still: Sequence[Still]) -> Looked:
    """What was seen of the run.

    Args:
        recorded: an open recording.
        records: its step records by (rank, step).
        still: counts of parameters.
    """
    found = list(records.values())
    at = ["losses"] if _any(r.loss for r in found) else []
    at += ["gradients"] if _any(r.grad_norm for r in found) else []
    if "gradients" not in at:
        at += _in_rows(recorded)
    return Looked(
        at=tuple(dict.fromkeys(at)),
        n_trained=sum(s.n for s in still if s.site == TRAINED),
        n_still=sum(s.n for s in still if s.site == STILL),
        lr_was_zero=bool(found) and all(r.lr == 0 for r in found),
    )


def _any(values: Iterable[float | None]) -> bool:
    return any(value is not None for value in values)


def _in_rows(recorded: Recorded) -> list[str]:
    """What rows tell of; of a dump any value is something."""
    if recorded.run.imported is not None:
        return ["values"] if holds_values(recorded) else []
    return [name for phase, name in _PARTS.items() if any(t.num_rows for _, t in scanned(recorded, _of(phase)))]


def _of(phase: str) -> Any:
    def where(table: Any) -> Any:
        import pyarrow.compute as pc

        return pc.equal(table["phase"], arrow(phase))

    return where
