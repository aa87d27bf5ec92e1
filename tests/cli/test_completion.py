"""What a shell offers when Tab is pressed."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

from blocks import page_line

SRC = Path(__file__).resolve().parents[2] / "src"
TOLD = {
    "bash": page_line("start.md", "bash_source"), "zsh": page_line("start.md", "zsh_source"),
    "fish": page_line("start.md", "fish_source"),
}  # fmt: skip
"""The line for the start-up file of each shell, as the page has it."""


def offered(line: str, shell: str = "bash") -> list[str]:
    words = line.split(" ")
    given = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_HYPOCENTER_COMPLETE": f"{shell}_complete"}
    done = subprocess.run(
        [sys.executable, "-m", "hypocenter"],
        env=os.environ | {"PYTHONPATH": str(SRC)} | given,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hypocenter che", ["plain,check", "plain,checklist"]),
        ("hypocenter check --fail-on w", ["plain,warning"]),
        ("hypocenter run --level mo", ["plain,modules"]),
        ("hypocenter run --level modules tr", ["file,tr"]),
        ("hypocenter show r", ["file,r"]),
        ("hypocenter explain hc10", [f"plain,HC10{n}" for n in range(1, 9)]),
    ],
)
def test_a_line_is_completed(line: str, expected: list[str]) -> None:
    found = offered(line)

    assert found[: len(expected)] == expected[: len(found)]
    assert found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_that_the_page_tells_to_source_is_one(shell: str) -> None:
    env = os.environ | {"PYTHONPATH": str(SRC), "_HYPOCENTER_COMPLETE": f"{shell}_source"}
    done = subprocess.run([sys.executable, "-m", "hypocenter"], env=env, capture_output=True, text=True, check=False)

    if shell == "bash" and "bash" in done.stderr and not done.stdout:
        pytest.skip("bash is older than 4.4")
    assert f"_HYPOCENTER_COMPLETE={shell}_complete" in done.stdout


BEGIN = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}
FIRST = {"bash": "", "zsh": "autoload -Uz compinit; compinit -u -D\n"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no pseudo-terminals")
@pytest.mark.parametrize("shell", BEGIN)
def test_tab_completes_in_a_real_shell_with_the_line_of_the_page(shell: str, tmp_path: Path) -> None:
    import pty

    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        BEGIN[shell],
        env=with_ours(tmp_path),
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)

    os.write(terminal, f"{FIRST[shell]}{TOLD[shell]}\necho rea''dy\n".encode())
    began = until(terminal, "ready")
    os.write(terminal, b"hypocenter expla\t")
    completed = until(terminal, "hypocenter explain ")
    os.write(terminal, b"format-over\t")
    answered = until(terminal, "format-overflow")
    process.kill()
    process.wait()
    os.close(terminal)

    assert ("ready" in began, "hypocenter explain " in completed, "format-overflow" in answered) == (True,) * 3, (
        began + completed + answered
    )


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_with_the_line_of_the_page(tmp_path: Path) -> None:
    asked = [TOLD["fish"], 'complete -C "hypocenter expla"', 'complete -C "hypocenter explain format-over"']
    done = subprocess.run(
        ["fish", "--no-config", "-c", "; ".join(asked)],
        env=with_ours(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )

    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["explain", "format-overflow"]


def with_ours(folder: Path) -> dict[str, str]:
    """An environment whose `hypocenter` is the one that is tested."""
    ours = folder / "bin" / "hypocenter"
    ours.parent.mkdir()
    ours.write_text(f'#!/bin/sh\nexec {sys.executable} -m hypocenter "$@"\n')
    ours.chmod(0o755)
    seen = {"TERM": "dumb", "HOME": str(folder), "PYTHONPATH": str(SRC), "PS1": "$ ", "COLUMNS": "200"}
    return os.environ | seen | {"PATH": f"{ours.parent}:{os.environ['PATH']}"}


def until(terminal: int, words: str, timeout: float = 60.0) -> str:
    """What a terminal shows until these words come, or until time is up."""
    shown, deadline = "", time.monotonic() + timeout
    while words not in shown and (left := deadline - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            try:
                shown += os.read(terminal, 4096).decode(errors="replace")
            except OSError:  # the shell has ended
                break
    return shown
