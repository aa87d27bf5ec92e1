"""Some ranks of one program, each a forked child that Hypocenter records: for many short runs."""

from __future__ import annotations

import json
import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

TIMEOUT_S = 600  # a machine may be busy, and a healthy program trained for long


def run_ranks(n: int, out: Path, config: dict[str, str], train: Callable[[], None]) -> None:
    """Run `train` on `n` ranks with a gloo group, recorded to `out`.

    Raises:
        RuntimeError: a rank failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out.parent.joinpath("said").touch()
    children = [_forked(rank, n, port, out, config, train) for rank in range(n)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise RuntimeError(f"ranks ended with {codes}:\n{(out.parent / 'said').read_text()}")


def _forked(rank: int, n: int, port: int, out: Path, config: dict[str, str], train: Callable[[], None]) -> int:
    """Start one rank; its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), TORCHELASTIC_RUN_ID=f"forked-{port}",
        HYPOCENTER_RUN=str(out), HYPOCENTER_CONFIG=json.dumps(config),
    )  # fmt: skip
    code = 1
    said = os.open(out.parent / "said", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    try:
        _be_rank(train)
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def _be_rank(train: Callable[[], None]) -> None:
    import atexit
    import gc
    import signal
    from datetime import timedelta

    import torch.distributed as dist

    from hypocenter.session import start_from_env

    signal.alarm(TIMEOUT_S)
    start_from_env()
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    train()
    gc.collect()
    dist.barrier()
    atexit._run_exitfuncs()
