"""What makes a forked child harmless: it opens nothing for writing, reaches nobody, and moves no file of its parent.

The audit hook ends the child at the first event that could be seen outside: what it would have said is not known then.
File descriptors that came with the fork share their position with those of the parent, so each is opened anew.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import resource
import signal
import stat
import sys
from pathlib import Path
from typing import Any

_FORBIDDEN = frozenset({
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.lchown", "os.chflags", "os.utime", "os.setxattr", "os.removexattr", "os.fork", "os.forkpty", "os.exec",
    "os.posix_spawn", "os.spawn", "os.system", "os.startfile", "os.kill", "os.killpg", "os.lockf", "os.mknod",
    "os.mkfifo", "os.chroot", "os.chdir", "os.fchdir", "signal.pthread_kill", "subprocess.Popen", "pty.spawn",
    "sqlite3.connect", "sqlite3.connect/handle", "urllib.Request", "webbrowser.open", "fcntl.flock", "fcntl.lockf",
    "fcntl.ioctl", "fcntl.fcntl", "syslog.syslog", "resource.setrlimit", "shutil.rmtree", "shutil.move",
})  # fmt: skip
_FORBIDDEN_KINDS = ("socket.", "ctypes.", "ftplib.", "smtplib.", "imaplib.", "poplib.", "nntplib.", "telnetlib.")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_HARMLESS_MAPS = (1, 3)  # ACCESS_READ, ACCESS_COPY of mmap
_KEPT_DEVICES = frozenset({"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"})

_NICE = 5
_STREAMS: list[Any] = []  # of the parent: nobody is to let go of them, which writes what they hold


def seal(answer: int, seconds: float) -> None:
    """Make this process harmless: it was forked a moment ago.

    Args:
        answer: the descriptor that it may write to.
        seconds: that it may live.
    """
    gc.disable()  # no finalizer of the program's is to run here
    sys.dont_write_bytecode = True
    sys.settrace(None)
    sys.setprofile(None)
    faulthandler.disable()
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(seconds) + 1)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # where memory is short, not the program
    _limit(seconds)
    _reopen(answer)
    _STREAMS.extend((sys.stdout, sys.stderr))
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (it ends with the process)
    sys.addaudithook(_look)


def _limit(seconds: float) -> None:
    n = int(seconds) + 1
    os.nice(_NICE)  # training goes on beside it
    for what, most in ((resource.RLIMIT_CPU, n), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(what, (most, most))


def _reopen(answer: int) -> None:
    """Give each descriptor a place in its file that is not the parent's; what is no file leads nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if number in (answer, nowhere):
            continue
        try:
            kind = os.fstat(number).st_mode
            path = f"/proc/self/fd/{number}"
            if stat.S_ISCHR(kind) and number > 2 and str(Path(path).readlink()) in _KEPT_DEVICES:
                continue
            is_file = stat.S_ISREG(kind) and number > 2
            own = _opened_again(number, path) if is_file or stat.S_ISDIR(kind) else nowhere
            os.dup2(own, number, inheritable=False)
            if own != nowhere:
                os.close(own)
        except OSError:
            continue  # that of the folder that was listed


def _opened_again(number: int, path: str) -> int:
    try:
        own = os.open(path, os.O_RDONLY)
    except OSError:
        return os.open(os.devnull, os.O_RDWR)
    with contextlib.suppress(OSError):
        os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
    return own


def _look(event: str, given: tuple[Any, ...]) -> None:
    """End the process at what could be seen outside."""
    if event == "open":
        path, mode, flags = given
        is_for_writing = isinstance(flags, int) and flags & _WRITING
        is_for_writing = is_for_writing or (isinstance(mode, str) and not set(mode).isdisjoint("wax+"))
        if is_for_writing and path != os.devnull:
            os._exit(1)
    elif event == "mmap.__new__":
        if given[2] not in _HARMLESS_MAPS:
            os._exit(1)
    elif event in _FORBIDDEN or event.startswith(_FORBIDDEN_KINDS):
        os._exit(1)
