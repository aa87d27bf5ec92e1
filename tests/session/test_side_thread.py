"""The exit of a process does not meet a thread that comes back from C++."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import contextlib, sys, threading, time
from datetime import timedelta
from torch.distributed import TCPStore
from hypocenter.session.side_thread import SideThread

store = TCPStore("localhost", 0, 1, True, timeout=timedelta(seconds=1))

class Waits(SideThread):
    is_over = False
    def call_off(self):
        self.is_over = True
    def work(self):
        while not self.is_over:
            with contextlib.suppress(RuntimeError):
                store.wait(["never"], timedelta(milliseconds=20))

thread = Waits("waits", 5.0)
if sys.argv[1] == "plain":
    thread = threading.Thread(target=thread.work, daemon=True)
thread.start()
time.sleep(0.2)
print("the end", flush=True)
"""


def ended(how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip


def test_the_exit_waits_for_it():
    done = ended("side")

    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr


@pytest.mark.night  # by day nobody asks whether torch still needs it: up to five processes
def test_a_plain_thread_takes_the_process_down():
    assert any(ended("plain").returncode for _ in range(5))  # where this holds no longer, nobody needs a SideThread
