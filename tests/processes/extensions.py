"""What DeepSpeed compiles at its first use, compiled before anything is timed.

It takes a minute of two idle cores and many on a busy machine. A process that is killed while torch compiles or loads
it leaves torch's lock behind: a file for which every later process waits for good, in this run of the tests or another.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

_BUILD = """
from deepspeed.accelerator import get_accelerator
get_accelerator().create_op_builder("ShareMemCommBuilder").load()
"""


def build_for_deepspeed() -> None:
    """Make DeepSpeed's communication for the CPU ready: called before every job that uses it."""
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / f"built-for-deepspeed-{version('deepspeed')}-torch-{version('torch')}"
    with FileLock(folder / "built-for-deepspeed.lock"):  # one at a time on this machine
        for lock in folder.glob("*/deepspeed_shm_comm/lock"):
            remove_if_left(lock)
        if done.exists():
            return
        env = os.environ | {"DS_ACCELERATOR": "cpu", "PYTHONWARNINGS": "ignore"}
        subprocess.run([sys.executable, "-c", _BUILD], env=env, check=True, stdout=subprocess.DEVNULL)
        done.touch()


def remove_if_left(lock: Path) -> None:
    """Remove a lock of torch that no living process has open; torch keeps it open for as long as it holds it."""
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if opened.samefile(lock):
                return
        except OSError:
            continue  # a process or a file that has ended meanwhile, or a lock that its holder has removed
    lock.unlink(missing_ok=True)


if __name__ == "__main__":
    build_for_deepspeed()
