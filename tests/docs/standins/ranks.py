"""Start a command line twice at once, as two ranks, and end as the worse of the two does."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence

N_RANKS = 2


def run_ranks(words: Sequence[str], of_rank: Callable[[int], dict[str, object]]) -> None:
    """Run `words` on each rank with what `of_rank` adds to its environment, and exit.

    `posix_spawn` is what tests/processes/server.py forks in place of.
    """
    argv = _argv(words)
    pids = []
    for rank in range(N_RANKS):
        env = dict(os.environ) | {name: str(value) for name, value in of_rank(rank).items()}
        pids.append(os.posix_spawn(argv[0], argv, env))
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.exit(max(code & 0xFF for code in codes))


def _argv(words: Sequence[str]) -> list[str]:
    if words[0] == "hypocenter":
        return [sys.executable, "-m", *words]
    if words[0] == "python":
        return [sys.executable, *words[1:]]
    found = shutil.which(words[0])
    if found is None:
        sys.exit(f"no command {words[0]}")
    return [found, *words[1:]]
