"""What DeepSpeed compiles at its first use, compiled before anything is timed.

It takes a minute of two idle cores and many on a busy machine. A process that is killed meanwhile leaves the lock of
torch behind, for which every later one would wait for good.
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
    """Compile DeepSpeed's communication for the CPU, unless these versions of it and of torch have done so here."""
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / f"built-for-deepspeed-{version('deepspeed')}-torch-{version('torch')}"
    with FileLock(folder / "built-for-deepspeed.lock"):  # one at a time on this machine
        if done.exists():
            return
        for left in folder.glob("*/deepspeed_shm_comm/lock"):
            left.unlink()
        env = os.environ | {"DS_ACCELERATOR": "cpu", "PYTHONWARNINGS": "ignore"}
        subprocess.run([sys.executable, "-c", _BUILD], env=env, check=True, stdout=subprocess.DEVNULL)
        done.touch()
