"""whereabouts: written by one process, read by another, whatever became of the first."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.record.liveness import liveness
from hypocenter.record.whereabouts import (
    COUNT,
    ENDED,
    IN_THREAD,
    MAX_GROUPS,
    NOT_RECORDING,
    PHASES,
    RAISED,
    SLOT_CALL,
    STACK_AT,
    WHEREABOUTS_FILE,
    group_key,
    packed_ranks,
    read_earlier,
    read_whereabouts,
)
from hypocenter.record.whereabouts_file import WhereaboutsFile

NO_COUNTS = b"\0" * COUNT.size * MAX_GROUPS


def slot(
    step=7, phase="backward", *, mono_ns=5_000, state=0, seq=0, op=b"", group=b"", ranks=b"", counts=NO_COUNTS, flags=0
):
    index = PHASES.index(phase)
    call = SLOT_CALL.pack(state, seq, 4_000, 0, counts, b"layers.3", op, group, ranks)
    return (mono_ns, 1_000_000, step, 2, index, flags), call


def test_what_was_written_is_read(tmp_path):
    ranks = tuple(range(0, 64, 8))
    key = group_key("dp", ranks)
    counts = bytearray(NO_COUNTS)
    COUNT.pack_into(counts, 0, key, 42)
    file = WhereaboutsFile(tmp_path, rank=3, world_size=64, attempt=1)

    file.slot(*slot(state=1, seq=41, op=b"all_reduce.sum", group=b"dp", ranks=packed_ranks(ranks), counts=counts))
    file.beat()
    seen = read_whereabouts(tmp_path)

    assert seen is not None
    assert (seen.rank, seen.world_size, seen.attempt, seen.pid) == (3, 64, 1, os.getpid())
    assert (seen.step, seen.microbatch, seen.phase, seen.site) == (7, 2, "backward", "layers.3")
    assert seen.call is not None
    assert seen.is_inside
    assert (seen.call.op, seen.call.group, seen.call.seq, seen.call.ranks) == ("all_reduce.sum", "dp", 41, ranks)
    assert seen.counts == {key: 42}
    assert seen.beat_mono_ns > 0
    assert seen.exit is None


def test_the_later_of_two_slots_counts(tmp_path):
    file = WhereaboutsFile(tmp_path, rank=0, world_size=2)

    for step in range(5):
        file.slot(*slot(step, mono_ns=step))
    file.slot(*slot(1, mono_ns=1))  # late, by another thread
    seen = read_whereabouts(tmp_path)

    assert seen is not None
    assert seen.step == 4


def test_a_torn_slot_is_passed_over(tmp_path):
    file = WhereaboutsFile(tmp_path, rank=0, world_size=2)
    file.slot(*slot(1, mono_ns=1))
    file.slot(*slot(2, mono_ns=2))

    data = bytearray((tmp_path / WHEREABOUTS_FILE).read_bytes())
    data[512 + 24] ^= 1  # the step, in the slot written last
    (tmp_path / WHEREABOUTS_FILE).write_bytes(data)
    seen = read_whereabouts(tmp_path)

    assert seen is not None
    assert seen.step == 1


def test_it_outlives_sigkill(tmp_path):
    pid = os.fork()
    if pid == 0:
        file = WhereaboutsFile(tmp_path, rank=1, world_size=2)
        for step in range(100):
            file.slot(*slot(step, mono_ns=step))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)

    seen = read_whereabouts(tmp_path)

    assert seen is not None
    assert (seen.step, seen.pid) == (99, pid)
    assert liveness(seen) == "gone"


def test_a_stopped_process_is_told_from_a_running_one(tmp_path):
    pid = os.fork()
    if pid == 0:
        WhereaboutsFile(tmp_path, rank=1, world_size=2)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    try:
        os.waitpid(pid, os.WUNTRACED)
        stopped = read_whereabouts(tmp_path)
        WhereaboutsFile(tmp_path / "own", rank=0, world_size=2)
        own = read_whereabouts(tmp_path / "own")

        assert stopped is not None
        assert own is not None
        assert (liveness(stopped), liveness(own)) == ("stopped", "running")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("kind", "raised", "ended"), [(RAISED, True, False), (ENDED, False, True), (IN_THREAD, False, False)]
)
def test_how_it_ended(tmp_path, kind, raised, ended):
    file = WhereaboutsFile(tmp_path, rank=0, world_size=2)
    name, text = ("", "") if kind == ENDED else ("ValueError", "no label\nhere")

    file.end(kind, name, text)
    seen = read_whereabouts(tmp_path)

    assert seen is not None
    assert seen.exit is not None
    assert (seen.has_raised, seen.has_ended) == (raised, ended)
    assert seen.exit.text == " ".join(text.split())


def test_an_earlier_attempt_is_kept_beside(tmp_path):
    WhereaboutsFile(tmp_path, rank=0, world_size=4, attempt=0).slot(*slot(9))

    WhereaboutsFile(tmp_path, rank=0, world_size=2, attempt=1)
    seen = read_whereabouts(tmp_path)

    assert seen is not None
    assert (seen.attempt, seen.world_size, seen.step) == (1, 2, 0)
    assert [(w.attempt, w.step) for w in read_earlier(tmp_path)] == [(1, 0), (0, 9)]


def test_the_flag_of_a_lost_recording(tmp_path):
    WhereaboutsFile(tmp_path, rank=0, world_size=2).slot(*slot(flags=NOT_RECORDING))

    seen = read_whereabouts(tmp_path)

    assert seen is not None
    assert seen.not_recording


def test_a_newer_format_is_not_guessed_at(tmp_path):
    from hypocenter.record import whereabouts

    file = WhereaboutsFile(tmp_path, rank=0, world_size=2)
    file._put(whereabouts.HEAD, 0, (whereabouts.MAGIC, whereabouts.FORMAT + 1, 0, 2, 1, 1, 1, 1, 0, b"h", b"b"))

    assert read_whereabouts(tmp_path) is None


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=STACK_AT + 200))
def test_any_bytes_give_an_answer(tmp_path_factory, data):
    folder: Path = tmp_path_factory.mktemp("rank")
    (folder / WHEREABOUTS_FILE).write_bytes(data)

    assert read_whereabouts(folder) is None


@settings(max_examples=200, deadline=None)
@given(st.integers(0, STACK_AT - 1), st.integers(0, 255), st.integers(0, STACK_AT))
def test_a_damaged_file_gives_an_answer(tmp_path_factory, at, value, length):
    folder: Path = tmp_path_factory.mktemp("rank")
    file = WhereaboutsFile(folder, rank=0, world_size=2)
    file.slot(*slot(3, mono_ns=1))
    data = bytearray((folder / WHEREABOUTS_FILE).read_bytes())
    data[at] = value
    (folder / WHEREABOUTS_FILE).write_bytes(data[:length])

    seen = read_whereabouts(folder)

    assert seen is None or seen.step in (0, 3)


@given(st.lists(st.integers(0, 5000), unique=True, max_size=40))
def test_ranks_survive_packing_or_are_left_out(ranks):
    from hypocenter.record.whereabouts import _unpacked_ranks

    packed = packed_ranks(tuple(sorted(ranks)))

    assert _unpacked_ranks(packed.decode()) in (tuple(sorted(ranks)), ())
    assert len(packed) <= 64
