"""Run programs in forks of a Python that has imported torch (or MindSpore): imports are paid once a test run.

`run(argv, ...)` is `subprocess.run(argv, capture_output=True, text=True, ...)` for the commands that
`tests/processes/server.py` understands, and for all others too, only not faster. Each set of heavy packages that
scripts import has a server of its own, a fork of the first: none sees a package that it would not have loaded itself.
All workers of a run share them (`share`, in tests/conftest.py).
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from warm_client import ask, said

CLIENT, SERVER = (Path(__file__).with_name(f"{name}.py") for name in ("warm_client", "server"))
SOURCE = Path(__file__).resolve().parents[2] / "src"
HEAVY = {name: (name,) for name in ("accelerate", "deepspeed", "lightning", "megatron_ready")}
HEAVY["trl"] = ("trl", "trl.trainer.grpo_trainer", "trl.trainer.dpo_trainer", "trl.trainer.sft_trainer", "peft")
HEAVY["transformers"] = ("transformers", "transformers.modeling_utils")  # by itself it imports next to nothing
HEAVY["transformers.trainer"] = (*HEAVY["transformers"], "transformers.trainer")  # and what that imports: 1.5 s
START_S = 120.0  # for the imports, on a machine under load
SHARED = "WARM_SERVERS"  # the folder with the servers' sockets, for all processes that this one starts
_held: list[object] = []  # what lives as long as we do


def share() -> None:
    """From now on the servers are those of this process and all that it starts, and end when it does."""
    folder = tempfile.mkdtemp(prefix="warm-")
    os.mkfifo(f"{folder}/life")
    _held.append(os.open(f"{folder}/life", os.O_RDWR))  # the end of it is the servers' end
    os.environ[SHARED] = folder
    atexit.register(_tidy, folder, os.getpid())


def _tidy(folder: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


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
    words, folder = tuple(str(word) for word in argv), cwd or Path.cwd()
    place = place_of(_python_of(words[0]), _imported(words, folder))
    with tempfile.TemporaryDirectory(prefix="warm-") as name:
        out, err = Path(name, "out"), Path(name, "err")
        with Path(os.devnull).open("rb") as nothing, out.open("wb") as to_out, err.open("wb") as to_err:
            streams = [nothing.fileno(), to_out.fileno(), to_err.fileno()]
            server = ask(place, {"argv": words, "env": dict(env), "cwd": str(folder)}, streams)
        with server:
            pid = int(said(server, max(timeout, START_S)))
            try:
                code = int(said(server, timeout))
            except TimeoutError:
                _end(pid)
                said(server, timeout)
                raise subprocess.TimeoutExpired(list(argv), timeout, _text(out), _text(err)) from None
        return subprocess.CompletedProcess(list(argv), code, _text(out), _text(err))


def link(path: Path, argv: Sequence[str]) -> Path:
    """Make a program that is this command, with what words it is given, in a fork: for shells and launchers."""
    words = shlex.join([sys.executable, "-IS", str(CLIENT), place_of(_python_of(argv[0])), *argv])
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


@functools.cache
def _imported(argv: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    """Heavy packages that the scripts of a command import at their top, and the folders of those beside a script."""
    scripts = [folder / word for word in argv if word.endswith(".py") and (folder / word).is_file()]
    texts = {script: script.read_text(encoding="utf-8") for script in scripts}
    names = {
        name for text in texts.values() for name in HEAVY
        if re.search(rf"^(import|from) {name}\b", text, re.MULTILINE)
    }  # fmt: skip
    if "transformers" in names and any("Trainer" in text for text in texts.values()):
        names = names - {"transformers"} | {"transformers.trainer"}
    beside = {str(script.parent) for script in scripts for name in names if script.with_name(f"{name}.py").is_file()}
    return (*sorted(beside), *(module for name in sorted(names) for module in HEAVY[name]))


def _python_of(program: str) -> str:
    """Whose server runs a command: MindSpore's Python has one of its own, for tests of both frameworks."""
    return program if program == os.environ.get("MINDSPORE_PYTHON") else sys.executable


def place_of(python: str, preload: Sequence[str] = ()) -> str:
    """The socket of the server of a Python, or of its fork that has these modules too; who is first starts it."""
    if SHARED not in os.environ:
        share()
    name = hashlib.sha256(json.dumps([python, *preload]).encode()).hexdigest()[:16]
    place = f"{os.environ[SHARED]}/{name}"
    with Path(f"{place}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _answers(place):
            Path(place).unlink(missing_ok=True)
            if preload:
                with ask(place_of(python), {"serve": place, "preload": preload}, [0, 1, 2]) as server:
                    assert said(server, START_S) == "ready"
            else:
                _start(python, place)
    return place


def _answers(place: str) -> bool:
    with socket.socket(socket.AF_UNIX) as asked:
        return asked.connect_ex(place) == 0


def _start(python: str, place: str) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    env = kept | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
    with Path(os.environ[SHARED], "life").open("rb", buffering=0) as life:
        server = subprocess.Popen([python, str(SERVER), place], env=env, stdin=life, stdout=subprocess.PIPE)
    _held.append(server)
    assert server.stdout is not None
    with server.stdout as told:
        assert select.select([told], [], [], START_S)[0], f"no server in {START_S:g} s"
        assert told.readline() == b"ready\n", "the server has ended"


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
