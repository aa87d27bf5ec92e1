"""`hypocenter view`, and `--notify` of `run`: the address that is printed opens, and who is to be told is told."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import recordings

SRC = Path(__file__).resolve().parents[2] / "src"
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("HYPOCENTER_")} | {"PYTHONPATH": str(SRC)}
TELL = "import sys; open('told', 'a').write(sys.stdin.read())"


def test_the_address_that_is_printed_opens_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    recordings.record(tmp_path / "runs" / "one")
    with subprocess.Popen(
        [sys.executable, "-m", "hypocenter", "view"], cwd=tmp_path, text=True, env=ENVIRONMENT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        address = urlsplit(server.stdout.readline().strip())
        connection = http.client.HTTPConnection(str(address.hostname), int(address.port or 0), timeout=30)
        connection.request("GET", f"/?{address.query}")
        code = connection.getresponse().status
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=60)

    assert code == 303
    assert server.returncode == 0
    assert said == "Ctrl-C ends it\n"


@pytest.mark.parametrize(
    ("words", "code", "slug"),
    [(("nowhere",), 4, "no-recording"), (("--notify", "pigeon:home"), 2, "bad-option")],
)
def test_what_cannot_be_served_is_one_error(tmp_path: Path, words: tuple[str, ...], code: int, slug: str) -> None:
    said = recordings.run("view", *words)

    assert said.code == code
    assert said.err.startswith(f"error[{slug}]: ")


def test_a_program_that_fails_under_run_is_told_and_its_exit_code_stays(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(7)")
    done = subprocess.run(
        [sys.executable, "-m", "hypocenter", "run", "--out", "r", "--notify", f'command:{sys.executable} -c "{TELL}"',
         "--notify", "env:BROKEN", "train.py"],
        cwd=tmp_path, text=True, capture_output=True, check=False,
        env=ENVIRONMENT | {"BROKEN": "command:false secret"},
    )  # fmt: skip

    told = json.loads((tmp_path / "told").read_text())
    assert done.returncode == 7
    assert (told["kind"], told["title"]) == ("ended", "failed, exit code 7")
    assert done.stderr.count("warning: an alert could not be sent to env:BROKEN (exit code 1)") == 1
    assert "secret" not in done.stderr + (tmp_path / "r" / "run.json").read_text()
