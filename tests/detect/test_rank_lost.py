"""HC321 to HC323 on jobs made by hand: who was lost, and who must not be accused."""

from __future__ import annotations

import pytest

from hypocenter.detect.endings import Job
from hypocenter.detect.group_rules import collectives_differ, rank_lost, recording_short
from hypocenter.nouns import Place, Run
from hypocenter.record.whereabouts import Exit, LastCall, Whereabouts, group_key, packed_ranks

S = 1_000_000_000  # ns
UNIX = 1_800_000_000 * S
ALL = (0, 1, 2, 3)
CLOSED = "Connection closed by peer [127.0.0.1]:6370"


def rank(
    n, *, step=7, phase="outside", moved=100.0, beat=None, exit=None, at=None, call=None, boot="b", stack="",
    own_sigterm=False, not_recording=False, counts=None,
):  # fmt: skip
    """One rank: times in seconds of the machine's clock."""
    beat = moved if beat is None else beat
    end = None
    if exit is not None:
        kind, _, text = exit.partition(": ")
        end = Exit(type="" if kind == "end" else kind, text=text, mono_ns=int(at * S), ns=UNIX + int(at * S))
    own = {} if call is None else {group_key(call.group, call.ranks or ALL): call.seq + 1}
    return Whereabouts(
        rank=n, world_size=4, host="h", pid=10 + n, boot=boot, pid_namespace=1, start_ticks=1, started_ns=UNIX,
        step=step, phase=phase, changed_mono_ns=int(moved * S), changed_ns=UNIX + int(moved * S),
        beat_mono_ns=int(beat * S), beat_ns=UNIX + int(beat * S), call=call, exit=end, stack=stack,
        stack_ns=UNIX + int(beat * S) + 1 if stack else 0, own_sigterm=own_sigterm, not_recording=not_recording,
        counts=own if counts is None else counts,
    )  # fmt: skip


def inside(seq, *, entered=100.0, op="all_reduce.sum", group="0", ranks=ALL, state="inside", left=0.0):
    return LastCall(
        op=op, group=group, members=packed_ranks(ranks).decode(), seq=seq, state=state,
        entered_ns=int(entered * S), left_ns=int(left * S),
    )  # fmt: skip


def job(
    *seen, now=200.0, alive=(), stopped=(), gone=None, status="failed", code=1, last_steps=None, places=None, **more
):
    lives = {w.rank: "running" if w.rank in alive else "stopped" if w.rank in stopped else "gone" for w in seen}
    return Job(
        run=Run(format=1, name="r", status=status, exit_code=code, world_size=4),
        now_ns=UNIX + int(now * S),
        ranks=tuple(w.rank for w in seen),
        whereabouts={w.rank: w for w in seen},
        liveness=dict.fromkeys(lives, "unknown") if gone is False else lives,
        last_steps=last_steps or {},
        step_s=0.1,
        places=places or {},
        **more,
    )


def one(job):
    (finding,) = rank_lost.check(job)
    return finding


def silence(job):
    return list(rank_lost.check(job)) == []


def others(*ranks, exit=f"RuntimeError: {CLOSED}", at=101.0, **more):
    return [rank(n, phase="backward", exit=exit, at=at, **more) for n in ranks]


def test_an_exception_comes_before_the_lost_connections():
    finding = one(job(*others(0, 1, 3), rank(2, phase="forward", exit="ValueError: no label", at=100.9)))

    assert (finding.rank, finding.severity, finding.confidence, finding.cause) == (2, "error", "proven", "rank-lost")
    assert finding.title == "rank 2 died of ValueError at step 7"
    assert "rank 2: ValueError: no label" in finding.why
    assert any("ranks 0, 1, 3 ended by RuntimeError 100 ms later" in line for line in finding.then)


def test_a_killed_rank_is_the_one_without_a_word():
    finding = one(job(*others(0, 1, 3), rank(2, phase="forward", moved=100.8)))

    assert (finding.rank, finding.count, finding.confidence) == (2, 1, "proven")
    assert finding.title == "rank 2 was killed or crashed at step 7"
    assert any("in the backward at step 7 for rank 2" in line for line in finding.why)


def test_a_stopped_rank_and_the_timeouts_of_the_others():
    timeout = "RuntimeError: Timed out waiting 5000ms for recv operation to complete"

    finding = one(job(*others(0, 1, 3, exit=timeout, at=106), rank(2, moved=101), stopped=[2]))

    assert finding.title == "rank 2 is stopped by a signal at step 7"
    assert finding.confidence == "proven"


def test_who_waits_for_whom_in_which_collective():
    failed = inside(41, state="failed", entered=101, left=106)
    waiting = [rank(n, exit=f"RuntimeError: {CLOSED}", at=106.1, call=failed) for n in (0, 1, 3)]
    place = Place(rank=0, groups={"dp": (0, 1, 2, 3)})

    finding = one(job(*waiting, rank(2, phase="backward", call=inside(40, state="left")), places={0: place}))

    assert finding.rank == 2
    assert (
        "ranks 0, 1, 3 waited for 5.0 s in all_reduce.sum #41 of all ranks at step 7 for rank 2, which never entered it"
        in finding.why
    )
    assert "its last collective was all_reduce.sum #40 of all ranks, which it left" in finding.why


def test_a_rank_that_is_killed_inside_the_collective_of_the_others():
    failed = inside(41, state="failed", entered=100, left=101)
    waiting = [rank(n, exit=f"RuntimeError: {CLOSED}", at=101, call=failed) for n in (0, 1, 3)]

    finding = one(job(*waiting, rank(2, phase="backward", call=inside(41))))

    assert (finding.rank, finding.phase, finding.op) == (2, "comm", "all_reduce.sum")
    assert "ranks 0, 1, 3 were inside the same one" in finding.why


def test_sigterm_of_the_launcher_follows_silence():
    shot = [rank(n, beat=103, stack='  File "/a/train.py", line 9 in main') for n in (0, 1, 3)]

    finding = one(job(*shot, rank(2, moved=100)))

    assert (finding.rank, finding.count) == (2, 1)
    assert finding.title == "rank 2 fell silent at step 7"


def test_sigterm_to_one_rank():
    finding = one(job(*others(0, 1, 3), rank(2, moved=100, beat=100.8, stack='  File "/a/train.py", line 9 in main')))

    assert finding.title == "rank 2 was ended by SIGTERM at step 7, before the others"


def test_a_rank_that_leaves_early():
    finding = one(job(*others(0, 1, 3), rank(2, exit="end", at=100.5)))

    assert finding.title == "rank 2 left the job at step 7 while others went on"


def test_a_rank_that_never_came():
    starting = [rank(n, step=0, phase="starting", exit="DistNetworkError: timed out", at=400) for n in (0, 1, 3)]

    finding = one(job(*starting))

    assert (finding.rank, finding.title) == (2, "rank 2 never came")


def test_two_ranks_of_the_same_failure():
    died = [rank(n, exit="ValueError: no label", at=100.9) for n in (1, 2)]

    finding = one(job(*others(0, 3), *died))

    assert (finding.title, finding.count) == ("ranks 1, 2 died of ValueError at step 7", 2)


def test_ranks_killed_by_the_launcher_later_are_not_accused():
    stuck = [rank(n, phase="backward", moved=100, beat=130) for n in (0, 1)]

    finding = one(job(*others(3), *stuck, rank(2, moved=99.9, beat=100.4)))

    assert (finding.rank, finding.count) == (2, 1)


def test_silence_long_before_all_were_killed():
    stuck = [rank(n, phase="backward", moved=100, beat=130) for n in (0, 1, 3)]

    finding = one(job(*stuck, rank(2, moved=99.9, beat=100.4), status="killed", code=137))

    assert (finding.rank, finding.count, finding.severity) == (2, 1, "error")


def test_a_job_that_hung_for_minutes_before_it_was_killed():
    call = inside(41, entered=100)
    hung = [rank(n, moved=100, beat=300, call=call) for n in (0, 1, 3)]

    finding = one(job(*hung, rank(2, moved=99.9, beat=300), status="killed", code=137))

    assert (finding.rank, finding.severity) == (2, "error")
    assert finding.title == "rank 2 does not go on at step 7: ranks 0, 1, 3 wait"


# near misses


def test_a_finished_run_is_silent():
    assert silence(job(*[rank(n, exit="end", at=100 + 3 * n) for n in ALL], status="finished", code=0))


def test_a_rank_that_leaves_by_os_exit_after_a_good_run_is_silent():
    assert silence(job(*[rank(n, exit="end", at=101) for n in ALL[:3]], rank(3), status="finished", code=0))
    assert silence(job(*[rank(n) for n in ALL], status="finished", code=0))


def test_a_rank_that_records_no_step_is_silent():
    assert silence(job(*[rank(n, exit="end", at=101, step=20) for n in ALL[:3]], rank(3, step=0, exit="end", at=90)))


def test_a_run_that_goes_on_is_silent():
    going = [rank(n, moved=199.9, phase=phase) for n, phase in enumerate(("forward", "backward", "update", "outside"))]

    assert silence(job(*going, alive=ALL, status="running", code=None))
    assert silence(job(*going, gone=False, status="running", code=None))


def test_all_killed_at_once_is_a_note():
    finding = one(job(*[rank(n, moved=100 + n / 10) for n in ALL], status="killed", code=137))

    assert (finding.severity, finding.title) == ("note", "the job was killed as a whole at step 7")


def test_killed_one_by_one_by_a_scheduler_is_a_note():
    dying = [rank(n, moved=100 + 4 * n, beat=100 + 4 * n) for n in ALL]  # each still trained until its turn came

    finding = one(job(*dying, status="killed", code=137))

    assert finding.severity == "note"


def test_all_ended_by_sigterm_is_a_note():
    shot = [rank(n, beat=103, stack='  File "/a/train.py", line 9 in main') for n in ALL]

    finding = one(job(*shot, status="killed", code=143))

    assert (finding.severity, finding.title) == ("note", "the job was killed as a whole at step 7")


def test_a_rank_with_a_sigterm_handler_of_its_own_is_not_accused():
    shot = [rank(n, beat=103, stack='  File "/a/train.py", line 9 in main') for n in (1, 2, 3)]

    finding = one(job(rank(0, beat=102, own_sigterm=True), *shot, status="killed", code=143))

    assert finding.severity == "note"


def test_the_same_exception_on_all_ranks_is_a_note():
    finding = one(job(*[rank(n, exit="KeyError: 'x'", at=100 + n / 100) for n in ALL]))

    assert (finding.severity, finding.title) == ("note", "the program ended by KeyError on all ranks at step 7")


def test_an_error_of_the_program_that_speaks_of_a_library_is_no_lost_connection():
    finding = one(job(*[rank(n, exit="TypeError: the hook required NCCL 2.10+", at=100 + n / 100) for n in ALL]))

    assert finding.title == "the program ended by TypeError on all ranks at step 7"


def test_lost_connections_on_all_ranks_accuse_nobody():
    finding = one(job(*others(*ALL)))

    assert finding.severity == "note"
    assert finding.title == "ranks 0 to 3 lost their connection at step 7, and no rank failed by itself"


@pytest.mark.parametrize(("now", "severity"), [(175, None), (190, "note"), (280, "warning")])
def test_a_barrier_while_one_rank_saves_is_a_fact_and_later_a_warning(now, severity):
    call = inside(41, entered=170, op="barrier")
    waiting = [rank(n, moved=170, beat=now - 0.1, call=call) for n in (1, 2, 3)]

    found = list(rank_lost.check(job(*waiting, rank(0, moved=169, beat=now - 0.1), alive=ALL, now=now)))

    assert [(f.rank, f.severity) for f in found] == ([] if severity is None else [(0, severity)])


def test_a_rank_that_gives_no_sign_of_life_while_others_wait():
    call = inside(41, entered=170)
    waiting = [rank(n, moved=170, beat=199.9, call=call) for n in (1, 2, 3)]

    finding = one(job(*waiting, rank(0, moved=169, beat=170), alive=ALL, status="running", code=None))

    assert (finding.rank, finding.severity) == (0, "error")


def test_a_running_job_with_a_dead_rank():
    waiting = [rank(n, moved=100, beat=199.9, phase="backward") for n in (0, 1, 3)]

    finding = one(job(*waiting, rank(2, moved=99), alive=(0, 1, 3), status="running", code=None))

    assert (finding.rank, finding.severity, finding.confidence) == (2, "error", "proven")
    assert any("101.0 s ago" in line for line in finding.why)


def test_a_stop_that_was_asked_for_accuses_nobody():
    made = job(*others(0, 1, 3), rank(2, exit="end", at=100.5))
    made.run.config["on_finding"] = "stop"

    assert silence(made)


def test_recordings_without_whereabouts_are_silent():
    assert silence(job())


def test_a_part_that_hypocenter_let_go_of_is_not_accused():
    assert silence(job(*[rank(n, exit="end", at=101) for n in ALL[:3]], rank(3, phase="off", moved=50)))


def test_clocks_of_several_machines_are_compared_by_unix_time():
    died = rank(2, exit="ValueError: no label", at=100.9, boot="other")

    assert one(job(*others(0, 1, 3), died)).rank == 2


def test_an_earlier_attempt_is_a_warning():
    made = job(*others(0, 1, 3), rank(2, exit="ValueError: no label", at=100.9), is_latest=False)

    finding = one(made)

    assert finding.severity == "warning"
    assert finding.title == "rank 2 died of ValueError at step 7; the job was started anew"


# HC322 and HC323


def test_a_recording_that_stops_early():
    short = rank(2, step=25, not_recording=True, exit="end", at=101)

    (finding,) = recording_short.check(job(short, last_steps={2: 4}))

    assert (finding.code, finding.rank, finding.severity, finding.step) == ("HC322", 2, "warning", 5)


def test_a_damaged_file_is_a_note_and_a_whole_recording_nothing():
    problem = "rank-00001/events-h-1.arrow: cut or damaged after 120 rows (invalid flatbuffers message)"

    (finding,) = recording_short.check(job(rank(1), problems=(problem,)))

    assert (finding.rank, finding.severity, finding.why) == (1, "note", (problem,))
    assert list(recording_short.check(job(rank(1), last_steps={1: 6}))) == []


def test_different_collectives_at_the_same_place():
    seen = [rank(n, call=inside(41)) for n in (0, 1, 2)] + [rank(3, call=inside(41, op="broadcast"))]

    (finding,) = collectives_differ.check(job(*seen))

    assert (finding.code, finding.rank, finding.op) == ("HC323", 3, "broadcast")
    assert finding.why == (
        "#41 of all ranks is all_reduce.sum on ranks 0 to 2",
        "#41 of all ranks is broadcast on rank 3",
    )


@pytest.mark.parametrize("other", [inside(42), inside(41, group="1", ranks=(2, 3)), inside(41, state="left")])
def test_collectives_that_need_not_agree(other):
    seen = [rank(0, call=inside(41)), rank(3, call=replace_op(other))]

    assert list(collectives_differ.check(job(*seen))) == []


def replace_op(call):
    from dataclasses import replace

    return replace(call, op="broadcast")
