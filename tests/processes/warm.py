"""Run programs in forks of a Python that has imported torch (or MindSpore): imports are paid once a test process.

`run(argv, ...)` is `subprocess.run(argv, capture_output=True, text=True, ...)` for the commands that
`tests/processes/server.py` understands, and for all others too, only not faster. Each set of heavy packages that
scripts import has a server of its own, a fork of the first: none sees a package that it would not have loaded itself.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

SERVER = Path(__file__).with_name("server.py")
SOURCE = Path(__file__).resolve().parents[2] / "src"
HEAVY = {name: (name,) for name in ("accelerate", "deepspeed", "lightning", "megatron_ready")}
HEAVY["trl"] = ("trl", "trl.trainer.grpo_trainer", "trl.trainer.dpo_trainer", "trl.trainer.sft_trainer", "peft")
HEAVY["transformers"] = ("transformers", "transformers.modeling_utils")  # by itself it imports next to nothing
START_S = 120.0  # for the imports, on a machine under load
_running: dict[str, subprocess.Popen[bytes]] = {}  # the last one of each Python


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """The command in a fork, its output captured.

    Raises:
        subprocess.TimeoutExpired: it ran longer than `timeout` seconds, and was ended with all its children.
    """
    server, folder = _server(_python_of(str(argv[0]))), cwd or Path.cwd()
    with tempfile.TemporaryDirectory(prefix="warm-") as name:
        out, err = Path(name, "out"), Path(name, "err")
        out.touch()
        err.touch()
        request = {
            "argv": [str(word) for word in argv], "env": dict(env), "cwd": str(folder),
            "stdout": str(out), "stderr": str(err), "preload": _imported(tuple(str(word) for word in argv), folder),
        }  # fmt: skip
        assert server.stdin is not None
        server.stdin.write(json.dumps(request).encode() + b"\n")
        pid = int(_line(server, max(timeout, START_S)))
        try:
            code = int(_line(server, timeout))
        except TimeoutError:
            _end(pid)
            _line(server, timeout)
            raise subprocess.TimeoutExpired(list(argv), timeout, _text(out), _text(err)) from None
        return subprocess.CompletedProcess(list(argv), code, _text(out), _text(err))


@functools.cache
def _imported(argv: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    """Heavy packages that the scripts of a command import at their top, and the folders of those beside a script."""
    scripts = [folder / word for word in argv if word.endswith(".py") and (folder / word).is_file()]
    names = {
        name for script in scripts for name in HEAVY
        if re.search(rf"^(import|from) {name}\b", script.read_text(encoding="utf-8"), re.MULTILINE)
    }  # fmt: skip
    beside = {str(script.parent) for script in scripts for name in names if script.with_name(f"{name}.py").is_file()}
    return (*sorted(beside), *(module for name in sorted(names) for module in HEAVY[name]))


def _python_of(program: str) -> str:
    """Whose server runs a command: MindSpore's Python has one of its own, for tests of both frameworks."""
    return program if program == os.environ.get("MINDSPORE_PYTHON") else sys.executable


def _server(python: str) -> subprocess.Popen[bytes]:
    """The running server of this process for a Python. It ends when its stdin does: also if we are killed."""
    if python not in _running or _running[python].poll() is not None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
        env = kept | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
        server = subprocess.Popen(
            [python, str(SERVER)], env=env, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert _line(server, START_S) == "ready"
        atexit.register(_close, server)
        _running[python] = server
    return _running[python]


def _close(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait()


def _line(server: subprocess.Popen[bytes], timeout_s: float) -> str:
    lines = server.stdout  # without a buffer, so that what is waiting is seen
    assert lines is not None
    with selectors.DefaultSelector() as selector:
        selector.register(lines, selectors.EVENT_READ)
        if not selector.select(timeout_s):
            raise TimeoutError(f"no answer of the server in {timeout_s:g} s")
    line = lines.readline().decode().strip()
    assert line, "the server has ended"
    return line


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
