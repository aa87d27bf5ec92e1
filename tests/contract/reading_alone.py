"""Run the reading half as a laptop without torch, and Windows, would: `python reading_alone.py REQUEST.json`.

What only Linux and macOS have is taken away, as are training frameworks, and text read or written without naming its
encoding is an error. The request holds command lines; printed is a line of JSON: for each its code, stdout and stderr,
and the modules that could not be imported.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pkgutil
import signal
import subprocess  # noqa: F401 (looks at what is taken away below when it is imported)
import sys
import warnings
from pathlib import Path

POSIX_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "curses", "syslog")
POSIX_NAMES = (
    "fork", "forkpty", "killpg", "getpgid", "getpgrp", "setsid", "getsid", "setpgid", "posix_spawn", "posix_spawnp",
    "uname", "pread", "pwrite", "preadv", "statvfs", "fstatvfs", "sched_getaffinity", "sched_setaffinity", "getuid",
    "geteuid", "getgid", "getegid", "getloadavg", "sysconf", "nice", "mkfifo", "fchmod", "chown", "sync", "wait3",
    "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "O_SYNC", "register_at_fork", "sendfile", "wait4",
)  # fmt: skip
SIGNALS = (
    "SIGKILL", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGPIPE", "SIGALRM", "SIGXFSZ", "SIGBUS",
    "SIGSTOP", "SIGCONT", "SIGTSTP", "pthread_sigmask", "sigwait", "sigwaitinfo", "pthread_kill", "setitimer", "alarm",
)  # fmt: skip
FRAMEWORKS = ("torch", "mindspore", "transformers", "lightning")
BEFORE = (
    "asyncio", "concurrent.futures", "tempfile", "multiprocessing", "shutil", "platform", "socket", "getpass",
    "numpy", "pyarrow", "pyarrow.compute", "pyarrow.parquet", "duckdb", "msgspec", "safetensors.numpy", "click", "rich",
    "jinja2", "yaml",
)  # fmt: skip
"""What is not ours looks at the system when it is imported: it sees it as it is."""


def take_away() -> None:
    """No POSIX, no framework, no text without its encoding."""
    for name in BEFORE:
        importlib.import_module(name)
    for name in (*POSIX_MODULES, *FRAMEWORKS):
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in ((os, POSIX_NAMES), (signal, SIGNALS)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    warnings.filterwarnings("error", category=EncodingWarning, module=r"hypocenter(\.|$)")


def not_imported(skipped: tuple[str, ...]) -> dict[str, str]:
    """Modules of hypocenter that fail to be imported, and why."""
    import hypocenter

    found: dict[str, str] = {}
    for info in pkgutil.walk_packages(hypocenter.__path__, "hypocenter.", onerror=lambda _name: None):
        if not info.name.startswith(skipped) and not info.name.endswith("__main__"):
            try:
                importlib.import_module(info.name)
            except Exception as error:
                found[info.name] = f"{type(error).__name__}: {error}"
    return found


def answered(words: list[str]) -> dict[str, object]:
    """One command line, to a stream whose encoding is that of a western Windows."""
    from hypocenter.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="cp1252") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    texts = [stream.buffer.getvalue().decode("cp1252") for stream in (out, err)]  # type: ignore[attr-defined]
    return {"code": code, "out": texts[0], "err": texts[1]}


if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    take_away()
    failed = not_imported(tuple(request["skipped"]))
    print(json.dumps({"failed": failed, "said": {name: answered(words) for name, words in request["lines"].items()}}))
