"""`python -m bench.view.stand_ins rank|nodes RUN RANK N_RANKS`: be one rank of a job, or all nodes but that rank's.

They average gradients over all ranks, a step each two seconds, until the file `died` is there: from then on all wait
for one inside the all-reduce. Nobody trains: only the files are written, as often as of a real job.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hypocenter.nouns import Coords, Place, StepRecord
from hypocenter.record.layout import rank_directory
from hypocenter.record.node_file import NodeFile, NodeNote, RankNote
from hypocenter.record.whereabouts import (
    CALL_STATES,
    COUNT,
    PHASES,
    SLOT_CALL,
    LastCall,
    Whereabouts,
    group_key,
    packed_ranks,
)
from hypocenter.record.whereabouts_file import WhereaboutsFile

PER_NODE, STEP_S, GROUP = 8, 2.0, "0"


def main(words: list[str]) -> None:
    """Go on for as long as whoever started this lives."""
    role, run, rank, n_ranks = words[0], Path(words[1]), int(words[2]), int(words[3])
    (be_rank if role == "rank" else be_nodes)(run, rank, Job(n_ranks, run.with_name("died")))


class Job:
    """How far the job is.

    Args:
        n_ranks: of the job.
        mark: the file that is there once a rank died.
    """

    def __init__(self, n_ranks: int, mark: Path) -> None:
        self.n_ranks, self._mark, self._parent = n_ranks, mark, os.getppid()
        everyone = tuple(range(n_ranks))
        self.key, self.members = group_key(GROUP, everyone), packed_ranks(everyone).decode()
        self._now: tuple[int, int, bool] = (0, 0, False)  # step, monotonic nanoseconds of its begin, whether all wait

    def goes_on(self) -> Iterator[None]:
        """Yield each time somebody may look again."""
        while os.getppid() == self._parent:
            if not self._now[2]:
                step, into_s = divmod(time.time(), STEP_S)
                begun_ns = time.monotonic_ns() - int(into_s * 1e9)
                self._now = int(step) % 1_000_000, begun_ns, self._mark.exists()
            yield

    def seen(self, rank: int) -> Whereabouts:
        """Return where a rank is: in a forward, or in the all-reduce that one never comes to."""
        step, begun_ns, waits = self._now
        mono_ns, ns = time.monotonic_ns(), time.time_ns()
        seq, host = (step if waits else step - 1), host_of(rank)
        call = LastCall(
            op="all_reduce.sum", group=GROUP, members=self.members, seq=seq, state="inside" if waits else "left",
            entered_ns=begun_ns, left_ns=0 if waits else begun_ns,
        )  # fmt: skip
        return Whereabouts(
            rank=rank, world_size=self.n_ranks, host=host, pid=1000 + rank, boot=host, pid_namespace=1, start_ticks=1,
            started_ns=1, step=step, phase="backward" if waits else "forward", changed_mono_ns=begun_ns,
            changed_ns=ns - mono_ns + begun_ns, beat_ns=ns, beat_mono_ns=mono_ns, call=call, counts={self.key: seq + 1},
        )  # fmt: skip


def host_of(rank: int) -> str:
    """Return the name of a rank's machine."""
    return f"node{rank // PER_NODE:04}"


def be_rank(run: Path, rank: int, job: Job) -> None:
    """Say twice a second, as a rank does, where this process is."""
    file = WhereaboutsFile(rank_directory(run, rank), rank=rank, world_size=job.n_ranks)
    for _ in job.goes_on():
        seen = job.seen(rank)
        call = seen.call
        assert call is not None
        state, counts = 1 + CALL_STATES.index(call.state), COUNT.pack(job.key, call.seq + 1)
        times = call.seq, call.entered_ns, call.left_ns
        packed = SLOT_CALL.pack(
            state, *times, counts, b"", call.op.encode(), call.group.encode(), call.members.encode()
        )
        file.slot((seen.changed_mono_ns, seen.changed_ns, seen.step, 0, PHASES.index(seen.phase), 0), packed)
        file.beat()
        time.sleep(0.5)


def be_nodes(run: Path, rank: int, job: Job) -> None:
    """Write the files of all nodes but one, each once a second at a time of its own."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    firsts = [first for first in range(0, job.n_ranks, PER_NODE) if not first <= rank < first + PER_NODE]
    files = [NodeFile(run, first, PER_NODE) for first in firsts]
    n_done, begun_s = 0, time.monotonic()
    for _ in job.goes_on():
        while n_done < (time.monotonic() - begun_s) * len(files):
            first, file = firsts[n_done % len(files)], files[n_done % len(files)]
            ranks = {rank: note(rank, job) for rank in range(first, first + PER_NODE)}
            file.write(NodeNote(host=host_of(first), written_ns=time.time_ns(), ranks=ranks))
            n_done += 1
        time.sleep(0.02)


def note(rank: int, job: Job) -> RankNote:
    """Return what the node of a rank says of it."""
    seen = job.seen(rank)
    place = Place(
        rank=rank, world_size=job.n_ranks, host=seen.host, device=f"cuda:{rank % PER_NODE}", coords=Coords(dp=rank)
    )
    last = StepRecord(step=seen.step - 1, loss=1.0, grad_norm=1.0, lr=1e-3, step_ms=1000 * STEP_S)
    return RankNote(seen=seen, life="running", place=place, last=last)


if __name__ == "__main__":
    main(sys.argv[1:])
