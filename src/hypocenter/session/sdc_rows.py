"""What a check for silent data corruption leaves in the recording: rows of phase comm at the site `sdc`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypocenter.nouns import Reading, Source, Summary
from hypocenter.replay.triage.again import Examined
from hypocenter.replay.triage.bits import Difference
from hypocenter.replay.triage.ops import OpReport, WrongOp
from hypocenter.tap.clock import Clock
from hypocenter.tap.op_context import OpPlace

SITE = "sdc"
MAX_NAMES = 8  # parameters with other bits that a row names
MAX_OPS = 4  # wrong ops that are written down


class Rows:
    """Makes the rows of one micro-batch of one step."""

    def __init__(self, clock: Clock, step: int, microbatch: int) -> None:
        self._clock, self._step, self._microbatch = clock, step, microbatch
        self.made: list[Reading] = []

    def add(
        self,
        port: str,
        summary: Summary | None = None,
        *,
        names: Sequence[str] = (),
        digest: int | None = None,
        op: str = "",
        module: str = "",
        source: Source | None = None,
    ) -> None:
        """One row."""
        self.made.append(
            Reading(
                step=self._step, microbatch=self._microbatch, phase="comm", site=SITE, port=port,
                order=self._clock.next_order(), summary=summary or Summary(), names=tuple(names), digest=digest,
                op=op, module=module, source=source,
            )
        )  # fmt: skip

    def examined(self, found: Examined, why: str) -> None:
        """What this device made of its own micro-batch.

        Args:
            why: it was done again: "schedule", or what looked wrong.
        """
        if found.run is not None:
            self.add("run", names=(why,), digest=found.run.digest)
        else:
            self.add("run", names=(why,))
        self.difference("again[0]", found.from_run, found.again.digest)
        if found.unlike:
            self.add("unlike", names=(found.unlike,))
        self.ops("ops", found.ops)
        for number, wrong in enumerate(found.ops.wrong[:MAX_OPS]):
            self._wrong(f"op[{number}]", wrong)
        if found.state:
            self.add("state", names=found.state[:MAX_NAMES])
        if found.n_bad_inputs:
            self.add("batch", Summary(n=found.n_bad_inputs, n_nan=found.n_bad_inputs))

    def repeated(self, port: str, distances: Sequence[float]) -> None:
        """How far each further replay was from the first."""
        if distances:
            self.add(port, summary_of(distances))

    def difference(self, port: str, found: Difference, digest: int, *, by: str = "") -> None:
        """How bits differ: a summary over parameters of the relative difference of norms; who differs."""
        names = found.names[:MAX_NAMES]
        self.add(port, summary_of(found.relative), names=(by, *names) if by else names, digest=digest)

    def ops(self, port: str, report: OpReport) -> None:
        """How many ops agree with float64 (0), do not (1), or were not judged (NaN)."""
        self.add(port, counts(report.n_checked, len(report.wrong), report.n_unknown + report.n_late))

    def counted(self, port: str, n_checked: int, n_wrong: int) -> None:
        """The same of a neighbour's ops."""
        self.add(port, counts(n_checked, n_wrong, 0))

    def parting(self, place: OpPlace | None, op: str, here: int, there: int) -> None:
        """Where a neighbour with the same inputs came to other bits, and who of the two is not of one mind."""
        source = place.source() if place is not None else None
        self.add("parting", names=(place.site if place is not None else "",), op=op, source=source)
        self.add("parting.here", summary_of([float(here)]))
        self.add("parting.there", summary_of([float(there)]))

    def _wrong(self, port: str, wrong: WrongOp) -> None:
        place = wrong.place
        self.add(
            port, summary_of([wrong.got]), names=(place.site, place.phase, str(list(wrong.index)), str(wrong.n_wrong)),
            op=wrong.op, module=place.module, source=place.source(),
        )  # fmt: skip
        self.add(f"{port}.float64", summary_of([wrong.expected]))
        self.add(f"{port}.bound", summary_of([wrong.bound]))


def counts(n_checked: int, n_wrong: int, n_unknown: int) -> Summary:
    """Ops as numbers: 0 right, 1 wrong, NaN not judged."""
    n_right = max(0, n_checked - n_wrong)
    return Summary(
        n=n_checked + n_unknown, n_nan=n_unknown, n_hist=n_checked + n_unknown, n_zero=n_right,
        min=0.0 if n_right else 1.0, max=1.0 if n_wrong else 0.0, absmax=1.0 if n_wrong else 0.0,
        sum=float(n_wrong), sumsq=float(n_wrong), absmin=1.0 if n_wrong else None,
    )  # fmt: skip


def summary_of(values: Sequence[float]) -> Summary:
    """The Summary of some Python numbers."""
    finite = [v for v in values if math.isfinite(v)]
    some: dict[str, Any] = {}
    if finite:
        some = {
            "min": min(finite), "max": max(finite), "absmax": max(map(abs, finite)),
            "absmin": min((abs(v) for v in finite if v), default=None),
        }  # fmt: skip
    squares = [v * v for v in finite if abs(v) < 1e150]  # a flipped bit may leave any number
    return Summary(
        n=len(values),
        n_hist=len(values),
        n_nan=sum(math.isnan(v) for v in values),
        n_posinf=sum(v == math.inf for v in values),
        n_neginf=sum(v == -math.inf for v in values),
        n_zero=sum(v == 0.0 for v in values),
        sum=math.fsum(v for v in finite if abs(v) < 1e300),
        sumsq=math.fsum(squares),
        **some,
    )
