"""What ranks tell of their parameters beside what they hold: whether somebody writes to them, what no wrapper has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hypocenter.detect.panel import Panel
from hypocenter.detect.replica_columns import codes
from hypocenter.detect.replica_rows import REWRITTEN, UNWRAPPED


@dataclass(slots=True)
class ReplicaFacts:
    """What is known so far."""

    last_fed: int | None = None
    n_rewritten: dict[int, int] = field(default_factory=dict[int, int])  # by rank, where it is not 0
    n_unwrapped: int | None = None  # parameters outside every DDP wrapper; None: no wrapper

    def is_averaged(self, ranks: Sequence[int]) -> bool:
        """Return whether parameters are changed between updates on all ranks of a group, or all but their source."""
        n_writing = sum(rank in self.n_rewritten for rank in ranks)
        if len(ranks) == 2 and n_writing == 1:
            return max(self.n_rewritten[rank] for rank in ranks if rank in self.n_rewritten) > 1
        return n_writing >= max(1, len(ranks) - 1)


def facts(panel: Panel) -> ReplicaFacts:
    """Return what is known with this panel; each is read once, whichever rule asks first."""
    known: ReplicaFacts = panel.history.notes["facts"].setdefault("known", ReplicaFacts())
    if known.last_fed != panel.step and panel.table.num_rows:
        known.last_fed = panel.step
        site, sites = codes(panel.table, "site")
        for name in {REWRITTEN, UNWRAPPED} & set(sites):
            rows = np.flatnonzero(site == sites.index(name))
            found = panel.table.select(["rank", "sum"]).take(rows).to_pydict()
            values = {rank: int(value) for rank, value in zip(found["rank"], found["sum"], strict=True)}
            if name == REWRITTEN:
                known.n_rewritten |= values
            else:
                known.n_unwrapped = max(known.n_unwrapped or 0, *values.values())
    return known
