"""Ranks by fork: torch is imported once, then every rank is a forked child. For many short runs of several ranks.

    python tests/ranks/forks.py --nproc-per-node 4 [--out RUN --config '{"level": "sentinel"}'] train.py ARGS...

Each child gets what torchrun would give it (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and runs the script
as `__main__`. With --out each is recorded as under `hypocenter run`. The parent prints `rank N pid P` lines on its
stderr, so that a test can signal one rank, waits for all, and exits with the worst code (128 + N for signal N). Unlike
torchrun it lets the others go on when one dies, for at most --grace seconds; then they are killed. So are ranks that
were stopped (SIGSTOP), once no other is left to wait for.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

from ports import free_port
from reducers import keep_reducers


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("--out")
    parser.add_argument("--config", default="{}")
    parser.add_argument("--grace", type=float, default=30.0)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    import torch
    import torch._dynamo  # each rank would load it by itself, with the first step of its optimizer

    if args.out:
        import hypocenter.session.start  # noqa: F401

    torch.set_num_threads(1)
    keep_reducers()
    port = free_port()
    children: dict[int, int] = {}
    for rank in range(args.nproc_per_node):
        pid = os.fork()
        if pid == 0:
            _be_rank(rank, args, port)
        children[pid] = rank
        print(f"rank {rank} pid {pid}", file=sys.stderr, flush=True)
    return _wait(children, args.grace)


def _be_rank(rank: int, args: argparse.Namespace, port: int) -> None:
    size = str(args.nproc_per_node)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size,
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID=f"forks-{port}",
    )  # fmt: skip
    code = 0
    try:
        if args.out:
            os.environ.update(HYPOCENTER_RUN=args.out, HYPOCENTER_CONFIG=args.config)
            from hypocenter.session import start_from_env

            start_from_env()
        script, *rest = args.program
        sys.argv = [script, *rest]
        sys.path.insert(0, str(Path(script).resolve().parent))
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # as Python itself would
        code = 1
    import atexit

    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait(children: dict[int, int], grace_s: float) -> int:
    worst, first_end = 0, None
    living, stopped = dict(children), set[int]()
    while living:
        pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            stopped.add(pid)
        elif pid:
            code = os.waitstatus_to_exitcode(status)
            code = code if code >= 0 else 128 - code
            print(f"rank {living.pop(pid)} exit {code}", file=sys.stderr, flush=True)
            worst = max(worst, code)
            first_end = first_end or time.monotonic()
        else:
            if stopped >= living.keys() or (first_end is not None and time.monotonic() - first_end > grace_s):
                for left in living:
                    os.kill(left, signal.SIGKILL)
            time.sleep(0.01)
    return worst


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # nothing here is worth the time that an interpreter full of modules takes to end
