"""`hypocenter show RUN | head -1`: no error, no traceback, the exit code of a program that SIGPIPE ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from recordings import record

UNREAD = 141  # 128 + SIGPIPE
TRAIN = """
import sys, torch
m = torch.nn.Linear(4, 4); o = torch.optim.SGD(m.parameters(), lr=.1)
for _ in range(2):
    o.zero_grad(); m(torch.ones(2, 4)).sum().backward(); o.step()
sys.exit(7)
"""


def unheard(*words: object, talk_too: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command whose stdout, or stdout and stderr, nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [sys.executable, "-m", "hypocenter", *map(str, words)], stdout=writing, text=True, check=False, timeout=120,
            stderr=writing if talk_too else subprocess.PIPE,
        )  # fmt: skip
    finally:
        os.close(writing)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("show", "RUN"), ("show", "RUN", "--values", "--rows", "0", "--json"), ("show", "RUN", "--sql", "from steps"),
     ("check", "RUN"), ("explain", "HC101"), ("--help",), ("show", "--help"), ("--version",)],
    ids=" ".join,
)  # fmt: skip
def test_a_reader_that_leaves_is_no_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = record(tmp_path / "run", n_steps=50)

    said = unheard(*(path if word == "RUN" else word for word in words))

    assert said.returncode == UNREAD
    assert [line for line in said.stderr.splitlines() if not line.startswith("next: ")] == []


def test_an_error_keeps_its_code_when_nobody_hears_it() -> None:
    assert unheard("show", "nope", talk_too=True).returncode == 4


@pytest.mark.night
def test_a_program_keeps_its_code_when_nobody_hears_us(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)

    said = unheard("run", "--out", tmp_path / "run", tmp_path / "train.py", talk_too=True)

    assert said.returncode == 7
