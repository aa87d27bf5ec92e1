"""Programs asked with a limit: one that hangs is stopped with its children, one that is missing is no error."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypocenter.doctor import gather
from hypocenter.doctor.gather import run

HANGS = """
import subprocess, sys
print("up", flush=True)
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).wait()
"""
IGNORES = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pause()"


def test_what_a_program_says() -> None:
    reply = run([sys.executable, "-c", "import sys; print('yes'); sys.exit(3)"], environ=os.environ)

    assert reply is not None
    assert (reply.code, reply.text, reply.is_good) == (3, "yes\n", False)


def test_a_program_that_does_not_exist() -> None:
    assert run(["/no/such/nvcc", "--version"], environ=os.environ) is None


def test_a_program_that_hangs_is_stopped_with_its_children() -> None:
    reply = run([sys.executable, "-c", HANGS], environ=os.environ, timeout_s=1.0)  # for ever, if one were left

    assert reply is not None
    assert reply.code is None


def test_a_program_that_ignores_signals_is_stopped() -> None:
    reply = run([sys.executable, "-c", IGNORES], environ=os.environ, timeout_s=0.5)

    assert reply is not None
    assert reply.code is None


def python(tmp_path: Path, body: str, monkeypatch: object) -> dict[str, object]:
    """What is made of a torch_facts that does `body` instead."""
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!{sys.executable} -S\n{body}\n", encoding="utf-8")
    stand_in.chmod(0o755)
    monkeypatch.setattr(gather.sys, "executable", str(stand_in))  # type: ignore[attr-defined]
    return gather.facts("torch_facts", os.environ, 1.0)


def test_facts_are_the_last_line_of_json(tmp_path: Path, monkeypatch: object) -> None:
    body = "print('a library greets')\nprint('{\"status\": \"imported\"}')"

    assert python(tmp_path, body, monkeypatch) == {"status": "imported"}


def test_a_torch_that_crashes(tmp_path: Path, monkeypatch: object) -> None:
    says = "import os, signal, sys\nprint('Fatal: cannot map', file=sys.stderr, flush=True)"
    body = f"{says}\nos.kill(os.getpid(), signal.SIGSEGV)"

    assert python(tmp_path, body, monkeypatch) == {
        "status": "crashed",
        "error": "Fatal: cannot map",
        "ended": "signal 11",
    }


def test_a_torch_that_hangs(tmp_path: Path, monkeypatch: object) -> None:
    found = python(tmp_path, "import signal\nsignal.pause()", monkeypatch)

    assert (found["status"], found["seconds"]) == ("timeout", 1.0)


def test_children_are_not_recorded_and_find_this_package() -> None:
    environ = gather.for_children({"HYPOCENTER_RUN": "/runs/1", "PYTHONPATH": "/mine", "A": "b"})

    assert "HYPOCENTER_RUN" not in environ
    assert environ["A"] == "b"
    assert environ["PYTHONPATH"].split(os.pathsep)[-1] == "/mine"
