"""A child answers and leaves no trace: no file, no position in one, no process, no random number."""

from __future__ import annotations

import os
import pickle
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hypocenter.session.data_set.child import ask
from hypocenter.session.data_set.may_fork import may_fork

LONG_S = 60.0


def has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def test_it_answers() -> None:
    assert ask(lambda: b"yes", LONG_S) == b"yes"


def test_it_computes_where_threads_of_torch_have_run() -> None:
    made = torch.rand(512, 512) @ torch.rand(512, 512)

    assert ask(lambda: str(float((made @ made).sum() > 0)).encode(), LONG_S) == b"1.0"


def test_without_an_answer_there_is_none_and_no_process() -> None:
    def fails() -> bytes:
        raise SystemExit(3)

    def never() -> bytes:
        while True:
            time.sleep(1)

    before = has_children()
    assert ask(fails, LONG_S) is None
    assert ask(never, 0.2) is None
    assert ask(lambda: os.kill(os.getpid(), signal.SIGSEGV) or b"", LONG_S) is None
    assert has_children() == before


def test_random_numbers_stay() -> None:
    def draws() -> bytes:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        return b"drawn"

    before = torch.get_rng_state(), random.getstate(), pickle.dumps(np.random.get_state())
    assert ask(draws, LONG_S) == b"drawn"

    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert before[2] == pickle.dumps(np.random.get_state())


def test_a_position_in_a_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(100)))
    with path.open("rb", buffering=0) as file:
        file.seek(10)

        def reads() -> bytes:
            there = file.read(2)
            file.seek(50)
            return there + file.read(1)

        assert ask(reads, LONG_S) == bytes([10, 11, 50])  # it begins where the parent is
        assert file.tell() == 10
        assert file.read(1) == bytes([10])
        path.unlink()
        assert ask(lambda: file.read(1), LONG_S) == bytes([11])
        assert file.tell() == 11


def test_nothing_is_written_to_what_is_open(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    with (tmp_path / "log").open("a", buffering=1) as file:

        def writes() -> bytes:
            file.write("of the child\n")
            return b"written"

        assert ask(writes, LONG_S) is None
        file.write("after\n")
    assert (tmp_path / "log").read_text() == "before\nafter\n"


def test_what_it_prints_is_not_seen(capfd: pytest.CaptureFixture[str]) -> None:
    def prints() -> bytes:
        print("of the child", flush=True)
        os.write(2, b"of the child")
        return b"said"

    assert ask(prints, LONG_S) == b"said"
    assert capfd.readouterr() == ("", "")


def test_a_pipe_of_the_program_hears_nothing() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)

    assert ask(lambda: str(os.write(write_end, b"of the child")).encode(), LONG_S) == b"12"

    with pytest.raises(BlockingIOError):
        os.read(read_end, 1)
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize(
    "act",
    [
        lambda path: (path / "new").write_text("child"),
        lambda path: os.open(path / "new", os.O_CREAT | os.O_WRONLY),
        lambda path: (path / "there").unlink(),
        lambda path: (path / "there").rename(path / "new"),
        lambda path: (path / "new").mkdir(),
        lambda path: (path / "there").chmod(0o600),
        lambda path: (path / "new").symlink_to(path / "there"),
        lambda path: os.truncate(path / "there", 0),
        lambda path: os.utime(path / "there", (0, 0)),
        lambda path: sqlite3.connect(path / "new"),
        lambda path: subprocess.run(["touch", path / "new"], check=True),
        lambda path: os.fork(),
        lambda path: socket.create_connection(("127.0.0.1", 9), timeout=1),
        lambda path: socket.socket(),
        lambda path: np.memmap(path / "there", mode="r+"),
        lambda path: np.save(path / "new", np.zeros(3)),
    ],
)  # fmt: skip
def test_what_could_be_seen_ends_it(tmp_path: Path, act: Callable[[Path], object]) -> None:
    (tmp_path / "there").write_text("before")
    before = [(each.name, each.stat()) for each in sorted(tmp_path.iterdir())]

    def acts() -> bytes:
        try:
            act(tmp_path)
        except BaseException:
            time.sleep(0)
        return b"it has gone on"

    assert ask(acts, LONG_S) is None
    after = [(each.name, each.stat()) for each in sorted(tmp_path.iterdir())]
    assert [(name, s.st_mtime_ns, s.st_mode, s.st_size) for name, s in after] == [
        (name, s.st_mtime_ns, s.st_mode, s.st_size) for name, s in before
    ]


def test_files_can_be_read(tmp_path: Path) -> None:
    np.save(tmp_path / "there.npy", np.arange(3))

    assert ask(lambda: bytes(np.load(tmp_path / "there.npy", mmap_mode="r").tolist()), LONG_S) == bytes([0, 1, 2])


def test_no_handler_and_no_exit_of_the_program_runs_in_it(tmp_path: Path) -> None:
    script = f"""
import atexit, os, signal, sys
from pathlib import Path
from hypocenter.session.data_set.child import ask
atexit.register(lambda: print("leaving"))
signal.signal(signal.SIGTERM, lambda *_: Path({str(tmp_path / "term")!r}).touch())
print("begun", end=" ")
def question():
    signal.raise_signal(signal.SIGTERM)
    return b"yes"
try:
    print(ask(question, 60))
finally:
    print("over")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "begun None\nover\nleaving\n"
    assert not (tmp_path / "term").exists()


def test_beside_threads_nobody_is_warned() -> None:
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait)
    thread.start()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert ask(lambda: b"yes", LONG_S) == b"yes"
    go_on.set()
    thread.join()
    assert caught == []


def test_a_program_that_hears_of_children_is_not_forked() -> None:
    assert may_fork(None, has_workers=True)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        assert not may_fork(None, has_workers=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        assert not may_fork(None, has_workers=True)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_nor_is_one_that_shares_memory() -> None:
    shared = torch.zeros(8).share_memory_()

    assert not may_fork(None, has_workers=False)
    assert may_fork(None, has_workers=True)  # batches come so; data sets that hold such are left alone
    del shared


def test_nor_one_beside_what_acts_at_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", sys)

    assert not may_fork(None, has_workers=True)


def test_nor_from_another_thread() -> None:
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(may_fork(None, has_workers=True)))
    thread.start()
    thread.join()
    assert answers == [False]
