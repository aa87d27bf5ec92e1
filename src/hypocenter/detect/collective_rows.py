"""How what goes into and comes out of collectives is written: what the observer and the rules over ranks agree on.

A row has phase comm, the site that called, port in[i] or out[i] (the i-th rank's part where the data lie by ranks), op
"all_reduce.sum", `call` n-th of this op in its group in the step (of sends and receives: to or from that peer), names
(axis or group, ranks "0,1,2", torch's name of the group, the peer's global rank or ""), summary, digest, small sketch.
"""

from __future__ import annotations

from collections.abc import Sequence

ADDING = ("sum", "avg")  # reductions that can be checked with linear sketches
BY_RANK_IN = frozenset({"reduce_scatter", "all_to_all", "scatter"})  # inputs lie by ranks
BY_RANK_OUT = frozenset({"all_gather", "all_to_all", "gather"})  # outputs do
FEW = 8  # ranks up to which all parts are written; above, PARTS of them, the same on all ranks
PARTS = 4
PER_STEP = 128  # collectives of a step that are written


def chosen(n_ranks: int, call: int, step: int) -> Sequence[int]:
    """Return the ranks whose parts are written where a rank has one of each."""
    if n_ranks <= FEW:
        return range(n_ranks)
    first = (call * PARTS + step) % n_ranks
    return [(first + i) % n_ranks for i in range(PARTS)]
