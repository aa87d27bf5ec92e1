"""Recordings that grow, and a server that is asked as a browser does."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hypocenter.nouns import StepRecord
from hypocenter.record.run_file import finish_run, start_run
from hypocenter.record.whereabouts import PHASES, SLOT_CALL, WherePhase
from hypocenter.record.whereabouts_file import WhereaboutsFile
from hypocenter.record.writer import Writer
from hypocenter.view.runs import name_of
from hypocenter.view.serving import Server


@dataclass
class Training:
    """A run under way."""

    path: Path
    writers: list[Writer]
    step: int = 0

    def go(self, n_steps: int, loss: float | None = None) -> None:
        for _ in range(n_steps):
            for writer in self.writers:
                value = 3.0 / (self.step + 1) if loss is None else loss
                record = StepRecord(step=self.step, loss=value, grad_norm=1.0, lr=0.1, step_ms=20.0)
                writer.write([], record)
            self.step += 1

    def end(self) -> None:
        for writer in self.writers:
            writer.close()
        finish_run(self.path, "finished", 0)


@dataclass(frozen=True)
class Answer:
    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


class Asking:
    """A server, and somebody who has its token."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.cookie = ""

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        cookie = {"Cookie": self.cookie} if self.cookie else {}
        for name, value in {**cookie, **headers}.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        got = connection.getresponse()
        answer = Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())
        connection.close()
        return answer

    def enter(self) -> Asking:
        self.cookie = self.get(f"/?token={self.server.token}").headers["set-cookie"].partition(";")[0]
        return self

    def run(self, path: Path, rest: str = "") -> Answer:
        return self.get(f"/run/{name_of(path.resolve())}{rest}")

    def part(self, path: Path, part: str, holds: str) -> str:
        """A part, once it says this."""
        return until(lambda: self.run(path, f"/part/{part}").text, holds)


def until(ask: Callable[[], str], holds: str, within_s: float = 90.0) -> str:
    end = time.monotonic() + within_s
    text = ask()
    while holds not in text and time.monotonic() < end:
        time.sleep(0.05)
        text = ask()
    assert holds in text
    return text


def training(path: Path, ranks: int = 1) -> Training:
    start_run(path, ["python", "train.py"], {"level": "sentinel"}, ranks, {"hypocenter": "0"})
    return Training(path, [Writer(path, rank=rank, warn=pytest.fail) for rank in range(ranks)])


def alive(
    run: Path, rank: int, world_size: int, step: int = 3, phase: WherePhase = "backward", **more: int
) -> WhereaboutsFile:
    """The file of a rank that this process is."""
    file = WhereaboutsFile(run / f"rank-{rank:05d}", rank=rank, world_size=world_size, **more)
    now = time.monotonic_ns(), time.time_ns()
    file.slot((*now, step, 0, PHASES.index(phase), 0), SLOT_CALL.pack(0, 0, 0, 0, b"", b"", b"", b"", b""))
    file.beat()
    return file


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from asking import alive
alive(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(run: Path, rank: int, world_size: int, step: int = 3) -> None:
    """Leave the file of a rank whose process is gone without a word."""
    words = [str(Path(__file__).parent), str(run), str(rank), str(world_size), str(step)]
    subprocess.run([sys.executable, "-c", KILLED, *words], check=False)
