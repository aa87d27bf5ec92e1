"""Manual pages of what is judged over ranks, by code: docstrings of the judges, and the table of NCCL's messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hypocenter.doctor import nccl_log
from hypocenter.doctor.over_ranks import (
    arithmetic,
    collectives,
    devices,
    judgement,
    links,
    pace,
    pairs,
    rendezvous,
    stuck,
)
from hypocenter.manual import Manual, parse

JUDGES: Mapping[str, Callable[..., object]] = {
    "comm.rendezvous": rendezvous.judge,
    "comm.stuck": stuck._stuck,
    "comm.died": stuck._died,
    "comm.failed": stuck._own_trouble,
    "comm.devices": devices._devices,
    "comm.memory": devices._without_memory,
    "comm.versions": devices._versions,
    "comm.links": links._sockets,
    "comm.host-name": links._names,
    "comm.pairs": pairs.judge,
    "comm.slow-link": pairs._slow,
    **{f"comm.{op}": collectives._judge for op in collectives.TITLES},
    "comm.bandwidth": pace._bandwidth,
    "comm.slow-rank": pace._slow_ranks,
    "comm.nccl-version": nccl_log._versions,
    "comm.nccl-transport": nccl_log._ways,
    "comm.nccl-warning": nccl_log._warnings,
    "arithmetic.burn": arithmetic._beyond_bounds,
    "arithmetic.repeat": arithmetic._unsteady,
    "arithmetic.among-ranks": arithmetic._among,
    "comm.not-judged": judgement._safely,
}


def manuals() -> dict[str, Manual]:
    """Return a page for each code that a check of the communication or the arithmetic can have."""
    judged = {code: parse(judge.__doc__) for code, judge in JUDGES.items()}
    return {**judged, **{f"comm.nccl-{entry.name}": _page(entry) for entry in nccl_log.known()}}


def _page(entry: nccl_log.Explained) -> Manual:
    after = " It follows from something else that failed first." if entry.is_consequence else ""
    return Manual(
        message=f"NCCL warns: {entry.what}.",
        sections=(
            ("What it means", f"{entry.why[:1].upper()}{entry.why[1:]}.{after}"),
            ("How it is decided", f"A line with `NCCL WARN` fits `{entry.pattern.pattern}`."),
            ("What to do", "\n".join(f"`{line}`" for line in entry.fix) or "Read what the other ranks say."),
            ("When it is wrong", "When the job went on and gave its results all the same."),
        ),
    )
