"""The keeper of whereabouts: what a session tells it is in the file, and what goes wrong stays here."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import textwrap
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

import warm

from hypocenter.record.layout import rank_directory
from hypocenter.record.whereabouts import group_key, read_whereabouts
from hypocenter.session.whereabouts import WhereaboutsKeeper
from hypocenter.tap.clock import Clock
from hypocenter.tap.names import NameMap

torch_spawn = importlib.import_module("torch.multiprocessing.spawn")  # the attribute of that name is a function


@pytest.fixture
def keeper(tmp_path):
    warnings: list[str] = []
    made = WhereaboutsKeeper(tmp_path, Clock(), NameMap(), lambda: (1, 4), warnings.append)
    made.warnings = warnings
    undo = made.attach()
    yield made
    undo()


def seen_of(tmp_path, rank=1):
    return read_whereabouts(rank_directory(tmp_path, rank))


def call(op="all_reduce", reduce="sum", group="dp", ranks=(1, 3), seq=0, peer=None):
    return SimpleNamespace(op=op, reduce=reduce, group=group, ranks=ranks, seq=seq, peer=peer)


def test_a_program_of_one_rank_has_no_file(tmp_path):
    keeper = WhereaboutsKeeper(tmp_path, Clock(), NameMap(), lambda: (0, 1), print)

    keeper.note("forward")
    keeper.end()

    assert not list(tmp_path.iterdir())


def test_phases_and_collectives_are_told(tmp_path, keeper):
    keeper.note("forward")
    keeper.before(call(seq=0))
    inside = seen_of(tmp_path)
    keeper.after(call(seq=0))
    keeper.before(call(op="broadcast", reduce="", group="tp", ranks=(0, 1), seq=4))
    keeper.failed(call(op="broadcast", reduce="", group="tp", ranks=(0, 1), seq=4), RuntimeError())
    failed = seen_of(tmp_path)

    assert inside.phase == "forward"
    assert (inside.call.op, inside.call.state, inside.call.ranks) == ("all_reduce.sum", "inside", (1, 3))
    assert (failed.call.op, failed.call.state, failed.call.seq) == ("broadcast", "failed", 4)
    assert failed.call.left_ns >= failed.call.entered_ns > 0
    assert failed.counts == {group_key("dp", (1, 3)): 1, group_key("tp", (0, 1)): 5}


def test_send_and_receive_are_not_counted(tmp_path, keeper):
    keeper.before(call(op="recv", reduce="", seq=3, peer=2))

    seen = seen_of(tmp_path)

    assert (seen.call.op, seen.call.ranks, seen.counts) == ("recv", (2,), {})


def test_more_groups_than_there_is_room_for(tmp_path, keeper):
    for n in range(20):
        keeper.before(call(group=f"g{n}", seq=n))
        keeper.after(call(group=f"g{n}", seq=n))

    seen = seen_of(tmp_path)

    assert len(seen.counts) == 8
    assert seen.counts[group_key("g19", (1, 3))] == 20


def test_an_end_is_told_once_and_stays(tmp_path, keeper):
    keeper.note("update")
    keeper._raised(ValueError("no\nlabel"), in_thread=False)
    keeper.end()

    seen = seen_of(tmp_path)

    assert seen.has_raised
    assert (seen.exit.type, seen.exit.text) == ("ValueError", "no label")


def test_letting_go_says_that_nobody_looks_any_more(tmp_path):
    keeper = WhereaboutsKeeper(tmp_path, Clock(), NameMap(), lambda: (1, 4), print)
    undo = keeper.attach()
    keeper.note("forward")

    undo()
    keeper.note("backward")

    assert seen_of(tmp_path).phase == "off"


def test_a_disk_that_fails_is_told_once_and_training_goes_on(tmp_path, keeper):
    keeper.note("forward")
    keeper._file.close()

    keeper.note("backward")
    keeper.note("update")

    assert len(keeper.warnings) == 1
    assert "whereabouts" in keeper.warnings[0]


def test_slow_writes_become_rare_and_the_last_is_not_lost(tmp_path, keeper):
    clock = [10**12]
    keeper._time_ns = lambda: clock[0]  # from the first write on: what that takes by the machine's clock is chance
    keeper.note("forward")
    keeper._stop.set()  # its thread writes what is late, too
    for thread in threading.enumerate():
        if thread.name == "hypocenter-whereabouts":
            thread.join(10)
    real, written = keeper._file.slot, []

    def slow(*fields):
        written.append(fields)
        clock[0] += 10_000_000  # 10 ms
        real(*fields)

    keeper._file.slot = slow
    for _ in range(50):
        clock[0] += 1_000
        keeper.note("backward")

    assert 4 <= len(written) <= 5
    assert keeper._late is not None
    assert seen_of(tmp_path).seldom

    keeper.before(call(seq=7))
    keeper.failed(call(seq=7), RuntimeError("closed"))
    keeper._raised(RuntimeError("closed"), in_thread=False)

    seen = seen_of(tmp_path)
    assert (seen.exit.type, seen.phase, seen.call.seq, seen.call.state) == ("RuntimeError", "outside", 7, "failed")


def test_hooks_of_others_are_still_called(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(sys, "excepthook", lambda *args: told.append(args[1]))
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_value))
    theirs = sys.excepthook
    keeper = WhereaboutsKeeper(tmp_path, Clock(), NameMap(), lambda: (1, 4), print)
    undo = keeper.attach()
    keeper.note("forward")
    error = KeyError("x")

    sys.excepthook(KeyError, error, None)
    undo()

    assert told == [error]
    assert sys.excepthook is theirs
    assert seen_of(tmp_path).exit.type == "KeyError"


def fail(*_):
    raise ValueError("no label")


def test_an_exception_that_multiprocessing_catches_is_told(tmp_path, keeper):
    keeper.note("forward")

    with pytest.raises(ValueError, match="no label"):
        BaseProcess.run(SimpleNamespace(_target=fail, _args=(), _kwargs={}))

    assert seen_of(tmp_path).exit.text.startswith("no label (test_whereabouts.py:")


def test_an_exception_that_torch_spawn_catches_is_told(tmp_path, keeper):
    keeper.note("forward")

    with pytest.raises(SystemExit):
        torch_spawn._wrap(fail, 1, (), str(tmp_path / "error"))

    assert seen_of(tmp_path).exit.type == "ValueError"


def test_a_forked_child_writes_nothing(tmp_path, keeper):
    keeper.note("forward")
    pid = os.fork()
    if pid == 0:
        keeper._raised(ValueError(), in_thread=False)
        keeper.end()
        os._exit(0)
    os.waitpid(pid, 0)

    assert seen_of(tmp_path).exit is None


SCRIPT = """
    import os, signal, sys, time
    from pathlib import Path
    from hypocenter.session.whereabouts import WhereaboutsKeeper
    from hypocenter.tap.clock import Clock
    from hypocenter.tap.names import NameMap

    keeper = WhereaboutsKeeper(Path(sys.argv[1]), Clock(), NameMap(), lambda: (1, 4), print)
    keeper.attach()
    keeper.note("backward")

    def train():
        {act}

    train()
"""


def run_script(tmp_path, act):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT).format(act=act))
    return started(script, tmp_path), seen_of(tmp_path)


def started(*words):
    return warm.run([sys.executable, *words], env=os.environ, timeout=60)


def test_a_sigterm_leaves_the_stack_and_still_kills(tmp_path):
    done, seen = run_script(tmp_path, "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)")

    assert done.returncode == -15
    assert "in train" in seen.stack
    assert seen.exit is None


def test_a_handler_of_the_program_set_before_is_still_called(tmp_path):
    act = "os.kill(os.getpid(), signal.SIGTERM); sys.exit(3)"
    script = textwrap.dedent(SCRIPT).replace(
        "keeper = ", "signal.signal(signal.SIGTERM, lambda *_: print('saved'))\nkeeper = "
    )
    (tmp_path / "script.py").write_text(script.format(act=act))

    done = started(tmp_path / "script.py", tmp_path)

    assert (done.returncode, done.stdout) == (3, "saved\n")


def test_a_handler_of_the_program_set_later_stays_its_own(tmp_path):
    script = textwrap.dedent(SCRIPT).replace(
        "keeper.attach()",
        "undo = keeper.attach()",
    )
    act = "signal.signal(signal.SIGTERM, lambda *_: print('saved')); undo(); os.kill(os.getpid(), signal.SIGTERM)"
    (tmp_path / "script.py").write_text(script.format(act=act))

    done = started(tmp_path / "script.py", tmp_path)

    assert (done.returncode, done.stdout) == (0, "saved\n")


def test_letting_go_in_a_forked_child_never_waits_for_the_thread(tmp_path, keeper):
    keeper.note("forward")
    with keeper._stop._cond:  # as if the thread were just about to wait
        pid = os.fork()
        if pid == 0:
            keeper._let_go()
            os._exit(7)
        for _ in range(500):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            time.sleep(0.01)
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    assert done == pid
    assert os.waitstatus_to_exitcode(status) == 7


def test_an_exception_is_told_with_its_line(tmp_path):
    done, seen = run_script(tmp_path, "raise ValueError('no label')")

    assert done.returncode == 1
    assert "no label" in done.stderr
    assert seen.exit.text == "no label (script.py:13)"


def test_a_rank_that_does_not_move_says_where(tmp_path):
    _, seen = run_script(tmp_path, "time.sleep(2.5); os._exit(0)")

    assert seen.line.endswith("script.py:13")
