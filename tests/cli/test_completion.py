"""What a shell offers when Tab is pressed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"


def offered(line: str, shell: str = "bash") -> list[str]:
    words = line.split(" ")
    given = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_HYPOCENTER_COMPLETE": f"{shell}_complete"}
    done = subprocess.run(
        [sys.executable, "-m", "hypocenter"], env=os.environ | {"PYTHONPATH": str(SRC)} | given,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
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
