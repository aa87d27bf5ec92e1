"""Starts, beside the first rank of each node of a large job, the process that writes down where the node's ranks are.

Training gives it nothing and waits for nothing: it reads what the ranks write anyway (`hypocenter.view.node`), when no
other program wants the processor.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hypocenter.config import Config
from hypocenter.launcher import OnNode

MANY_RANKS = 64  # of fewer `view` reads each rank's own files
_STARTED = "_HYPOCENTER_NODE"  # processes that this one starts, such as compilers, are no ranks
_children: list[subprocess.Popen[bytes]] = []


def follow_node(config: Config, directory: Path, warn: Callable[[str], None], here: OnNode) -> None:
    """Start it, if this is the first rank of a node of a large job. Never raises.

    Args:
        config: may forbid it.
        directory: of the run.
        warn: says why it could not be started.
        here: where this rank stands.
    """
    is_first = here.local_rank == 0 and multiprocessing.parent_process() is None and _STARTED not in os.environ
    if not config.node_files or not is_first or here.world_size < MANY_RANKS or here.n_ranks < 2:
        return
    os.environ[_STARTED] = "1"
    env = {name: value for name, value in os.environ.items() if not name.startswith("HYPOCENTER_")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), env.get("PYTHONPATH", "")]))
    env |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # NumPy would start one a core, and computes nothing
    numbers = [str(number) for number in (here.rank, here.n_ranks, os.getpid())]
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "hypocenter.view.node", str(directory), *numbers],
            env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        _children.append(child)
    except OSError as error:
        warn(f"where the ranks of this node are is not written down ({type(error).__name__}: {error})")
