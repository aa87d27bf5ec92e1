"""Who waits for whom, of a job so large that comparing each rank with each would take minutes."""

import time

from hypocenter.detect.endings import Job
from hypocenter.detect.group_rules import rank_lost
from hypocenter.detect.waiting import waits
from hypocenter.nouns import Run
from hypocenter.record.whereabouts import LastCall, Whereabouts, group_key

N, SECONDS = 20_000, 4.0  # each rank with each: 400 million
MEMBERS = f"0-{N - 1}:1"
KEY = group_key("0", tuple(range(N)))


def rank(n: int, *, waits: bool, call: bool = True) -> Whereabouts:
    step = 7 if waits else 6
    last = LastCall(
        op="all_reduce.sum", group="0", members=MEMBERS, seq=step, state="inside" if waits else "left",
        entered_ns=step, left_ns=0,
    )  # fmt: skip
    return Whereabouts(
        rank=n, world_size=N, host="h", pid=n, boot="", pid_namespace=1, start_ticks=1, started_ns=1, step=step,
        phase="backward", call=last if call else None, counts={KEY: step + 1} if call else {},
    )  # fmt: skip


def test_all_wait_for_one_in_a_collective_or_where_it_cannot_be_seen() -> None:
    for call in (True, False):
        began_s = time.process_time()
        found = waits({n: rank(n, waits=n != 4242, call=call) for n in range(N)})

        assert [(len(wait.waiting), wait.missing) for wait in found] == [(N - 1, (4242,))]
        assert time.process_time() - began_s < SECONDS


def test_half_of_a_job_waits_for_the_other_half() -> None:
    for call in (True, False):
        began_s = time.process_time()
        seen = {n: rank(n, waits=n % 2 == 0, call=call) for n in range(N)}
        lives = {n: "running" if n % 2 == 0 else "gone" for n in range(N)}
        run = Run(format=1, name="r", status="running", world_size=N)
        job = Job(run=run, now_ns=1, ranks=tuple(range(N)), whereabouts=seen, liveness=lives)
        found = list(rank_lost.check(job))

        assert [(finding.count, finding.confidence) for finding in found] == [(N // 2, "proven")]
        assert time.process_time() - began_s < SECONDS


def test_members_of_a_group_share_its_ranks() -> None:
    """10,000 ranks that each hold 10,000 numbers are gigabytes."""
    one, other = rank(0, waits=True).call, rank(1, waits=True).call

    assert one is not None
    assert other is not None
    assert one.ranks is other.ranks
    assert one.ranks == tuple(range(N))
    assert one.key == KEY
