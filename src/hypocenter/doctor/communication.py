"""Communication: every rank examines itself and its links, one answer comes out. The half without torch.

Under a launcher (torchrun, srun, mpirun) each rank's process calls `examine_job`; without one it starts local ranks.
What a rank does is in `hypocenter.examine`: a child process, ended with this one or when the time is up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hypocenter.doctor.answer import Check


class Examined(NamedTuple):
    """What came out: the same on every rank, so that all end with the same exit code."""

    checks: tuple[Check, ...]
    missing: tuple[int, ...]  # ranks that never came
    n_ranks: int


def examine_job(
    *,
    timeout_s: float,
    environ: Mapping[str, str] = os.environ,
    ranks: int | None = None,
    own: Sequence[Check] = (),
) -> Examined:
    """Examine communication and arithmetic of the whole job; returns within `timeout_s`, whatever hangs.

    Args:
        timeout_s: from this call to the return.
        environ: as the launcher made it.
        ranks: how many local ranks to start where there is no launcher; None: one per device, 2 to 4 without any.
        own: checks that this rank made itself (toolkits, settings of its machine). They travel: what comes out holds
            those of all ranks, each once per host.
    """
    raise NotImplementedError


def speaks(examined: Examined, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is the one that prints: the lowest rank that came. The others print nothing.

    The others return from `examine_job` after the one that speaks has ended or printed, lest a launcher that sees one
    rank fail ends the one that speaks.
    """
    raise NotImplementedError
