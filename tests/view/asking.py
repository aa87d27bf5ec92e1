"""Recordings that grow, and a server that is asked as a browser does."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hypocenter.nouns import StepRecord
from hypocenter.record.run_file import finish_run, start_run
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
