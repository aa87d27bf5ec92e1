"""What a terminal shows while a command takes its time."""

from __future__ import annotations

import io
import time

import pytest

from hypocenter.cli.waiting import shown_while_waiting
from hypocenter.report.screen import write


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def until_shown(out: io.StringIO) -> None:
    deadline = time.monotonic() + 200
    while "..." not in out.getvalue() and time.monotonic() < deadline:
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_a_long_wait_is_shown_and_gone_before_anything_is_written() -> None:
    out = Terminal()

    with shown_while_waiting("hypocenter check", out, after_s=0.0):
        until_shown(out)
        write(out, "the answer\n")

    assert out.getvalue().startswith("\r\x1b[Khypocenter check ... 0 s")
    assert " s\r\x1b[Kthe answer\n" in out.getvalue()


def test_a_short_wait_shows_nothing() -> None:
    out = Terminal()

    with shown_while_waiting("hypocenter check", out, after_s=60.0):
        pass

    assert out.getvalue() == ""


def test_a_log_and_a_dumb_terminal_get_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log, dumb = io.StringIO(), Terminal()

    with shown_while_waiting("hypocenter check", log, after_s=0.0):
        time.sleep(0.05)
    monkeypatch.setenv("TERM", "dumb")
    with shown_while_waiting("hypocenter check", dumb, after_s=0.0):
        time.sleep(0.05)

    assert (log.getvalue(), dumb.getvalue()) == ("", "")
