"""`python -m bench.retention.drills --drills 200`: recordings shipped to a faulty store, and what is there then.

Each drill writes a recording while the store is slow, refuses, cuts, is full or loses answers, each in a share of the
requests; then the machine dies, now and then in the middle of shipping. What the manifest names must be there to the
bit, and no secret may be in the recording.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import tempfile
import threading
import time
from pathlib import Path

from bench.retention import synthetic
from bench.retention.store import FAULTS, SECRET, Store, served
from hypocenter.record import ship_apart
from hypocenter.record.address import filesystem_of
from hypocenter.record.keeper import Keep
from hypocenter.record.ship_apart import ship_until
from hypocenter.record.shipping import Freight, read_manifest
from hypocenter.record.writer import Writer

STEPS = 1_600
EVERY_S = 0.1  # between rounds, in place of ten minutes
STEP_S = 0.0005  # of the program itself


def main() -> None:
    """Drill, count, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.retention.drills", description=__doc__)
    parser.add_argument("--drills", type=int, default=200)
    asked = parser.parse_args()
    ship_apart.FIRST_WAIT_S, ship_apart.LONGEST_WAIT_S = 0.01, 0.1
    n_lost = n_files = n_without = 0
    with served() as store, tempfile.TemporaryDirectory() as folder:
        for number in range(asked.drills):
            store.rng = random.Random(number)
            store.faults = {name: store.rng.choice((0.0, 0.0, 0.1, 0.4)) for name in FAULTS}
            out, address = Path(folder) / str(number), f"s3://runs/drill-{number}"
            drill(out, address, store)
            found = checked(address)
            n_files, n_without = n_files + max(0, found), n_without + (found == 0)
            n_lost += found < 0
            leaked = any(SECRET.encode() in path.read_bytes() for path in out.rglob("*") if path.is_file())
            n_lost += leaked
        print(f"{asked.drills} drills, {dict(store.done)}: {n_files:,} files acknowledged, {n_lost} drills with a loss")
        print(f"{n_without} drills in which the store took nothing")


def drill(out: Path, address: str, store: Store) -> None:
    """One recording, up to the death of its machine."""
    out.mkdir()
    freight, over = _Mortal(run=out, folder=out / "rank-00000", address=address), threading.Event()
    # In a thread: the start of a process would be most of a drill.
    thread = threading.Thread(target=ship_until, args=(over, freight, EVERY_S, lambda _: None))
    thread.start()
    writer, of = Writer(out, rank=0, warn=print, keep=Keep(n_bytes=1 << 20, n_steps=512)), synthetic.template()
    for rows, record, norms in synthetic.steps(0, STEPS, of, {300: "nan"}):
        writer.write(rows, record, norms)
        time.sleep(STEP_S)
    time.sleep(store.rng.random() * 0.5)
    over.set()
    thread.join(60)


class _Mortal(Freight):
    """Of a machine that dies: it does not get to ship the rest."""

    def ship(self, is_over: bool) -> None:
        if not is_over:
            super().ship(is_over)


def checked(address: str) -> int:
    """How many files the manifest names; -1: one of them is not there as it says."""
    filesystem, root = filesystem_of(address)
    filesystem.invalidate_cache()
    try:
        manifest = read_manifest(filesystem.cat_file(f"{root}/rank-00000/manifest.json"))
    except FileNotFoundError:
        return 0
    for name, state in manifest.files.items():
        try:
            data = filesystem.cat_file(f"{root}/rank-00000/{state.object or name}")
        except FileNotFoundError:
            return -1
        if (len(data), hashlib.sha256(data).hexdigest()) != (state.size, state.sha256):
            return -1
    return len(manifest.files)


if __name__ == "__main__":
    main()
