"""python -m bench.triage --drills 100: random drills of each kind on forked ranks; prints the table of verdicts.

With --write the table goes into docs/triage.md.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.triage.table import judged, table, write


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drills", type=int, default=100, help="of each kind")
    parser.add_argument("--kinds", default="", help="comma-separated; all when not given")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the recordings")
    parser.add_argument("--into", type=Path, help="file of results: those of this run are added to it")
    parser.add_argument("--write", type=Path, help="page to put the table into")
    args = parser.parse_args()
    started = time.perf_counter()
    results = drill(args.drills, tuple(filter(None, args.kinds.split(","))), args.ranks, args.seed, args.keep)
    seconds = time.perf_counter() - started
    if args.into is not None:
        before = json.loads(args.into.read_text(encoding="utf-8")) if args.into.exists() else []
        results = [*before, *results]
        args.into.write_text(json.dumps(results), encoding="utf-8")
    text = table(results)
    print(text)
    print(f"{len(results)} drills on {args.ranks} ranks in {seconds:.0f} s")
    if args.write:
        write(args.write, text, n_ranks=args.ranks, n_drills=args.drills, seed=args.seed)
    return 0


def drill(n: int, kinds: tuple[str, ...], n_ranks: int, seed: int, keep: Path | None = None) -> list[dict[str, Any]]:
    """Fork the ranks, run all drills, read what was found in each."""
    import gc

    import torch

    import_module("bench.triage.drills")  # once, before the fork

    torch.set_num_threads(1)
    gc.freeze()
    with tempfile.TemporaryDirectory() as scratch, socket.socket() as free:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        children = [_fork(rank, n_ranks, port, folder, n, kinds, seed) for rank in range(n_ranks)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            raise SystemExit(f"the ranks ended with {codes}")
        return [
            result
            for rank in range(n_ranks)
            for result in json.loads((folder / f"verdicts-{rank}.json").read_text(encoding="utf-8"))
        ]


def _fork(rank: int, n_ranks: int, port: int, folder: Path, n: int, kinds: tuple[str, ...], seed: int) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        _rank(rank, n_ranks, port, folder, n, kinds, seed)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _rank(rank: int, n_ranks: int, port: int, folder: Path, n: int, kinds: tuple[str, ...], seed: int) -> None:
    import torch.distributed as dist

    from bench.triage.drills import KINDS, plan, run

    store = dist.TCPStore("127.0.0.1", port, n_ranks, rank == 0, timeout=timedelta(seconds=120))
    plans = [plan(kind, i, seed, n_ranks) for kind in (kinds or tuple(KINDS)) for i in range(n)]
    for each in plans:
        name = f"{each.kind}-{each.number:03d}"
        dist.init_process_group(
            "gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=n_ranks, timeout=timedelta(seconds=120)
        )
        (folder / name).mkdir(exist_ok=True) if rank == 0 else None
        dist.barrier()
        run(each, folder / name)
        dist.barrier()
        dist.destroy_process_group()
    mine = [judged(each, folder / f"{each.kind}-{each.number:03d}") for each in plans[rank::n_ranks]]
    (folder / f"verdicts-{rank}.json").write_text(json.dumps(mine), encoding="utf-8")
    dist.PrefixStore("end", store).set(str(rank), "1")
    if rank == 0:
        for other in range(n_ranks):
            dist.PrefixStore("end", store).get(str(other))


if __name__ == "__main__":
    sys.exit(main())
