"""Damaged dumps of every kind, imported: `python -m bench.importing fuzz [--minutes N] [--seed N] [--samples DIR]`.

Each import runs in a process of its own with limits of memory and time, and is watched: it may make a run or say one
error of ours. Anything else is printed with the seed that repeats it (`--seed N --times 1`), and the exit code is 1:
another exception, a crash, too much memory or time, code run, or a file written outside of the run.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import hypocenter
from bench.importing.mutations import copied, damage
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.errors import HypocenterError
from hypocenter.importing.catalogue import import_dump
from hypocenter.record.reader import open_run

SAMPLES = Path(__file__).resolve().parents[2] / "tests" / "importing" / "samples"
MEMORY = 256 << 20  # bytes that an import of a few hundred KiB may take on top of the interpreter and its libraries
_ADDRESSES = 4 << 30  # bytes of address space at most: allocators reserve far more than they take
KINDS = ("msprobe", "msprobe-monitor", "ptdbg", "mindspore-dump", "troubleshooter")
SECONDS = 60  # of processor time
GOOD = ("a run", "an error of ours")
_RUNS_CODE = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "pickle.find_class",
    "socket.connect",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one import ended: "a run", "an error of ours", or what must not be."""

    seed: int
    sample: str
    ended: str
    detail: str = ""
    damage: tuple[str, ...] = ()
    memory: int = 0  # bytes, on top of the interpreter

    @property
    def is_good(self) -> bool:
        """Whether this may be."""
        return self.ended in GOOD


def main(argv: list[str]) -> int:
    """Fuzz for some minutes, or some times, and say what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.importing fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--times", type=int, default=sys.maxsize)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=Path, default=SAMPLES)
    wanted = parser.parse_args(argv)
    until = time.monotonic() + 60 * wanted.minutes
    seen: Counter[str] = Counter()
    n_bad = most = 0
    seeds = range(wanted.seed, wanted.seed + wanted.times)
    for outcome in outcomes(dumps_of(wanted.samples), seeds, until):
        seen[outcome.ended] += 1
        most = max(most, outcome.memory)
        if not outcome.is_good:
            n_bad += 1
            print(
                f"seed {outcome.seed}: {outcome.sample}: {outcome.ended}\n  {outcome.damage}\n{outcome.detail}",
                flush=True,
            )
    print(", ".join(f"{n:,} {how}" for how, n in seen.most_common()) or "nothing was tried")
    print(f"at most {most >> 20:,} MiB of memory for one import")
    return int(bool(n_bad))


def dumps_of(samples: Path) -> list[Path]:
    """Folders that are a dump each: those of a tool, and those of pairs and cases below."""
    found: list[Path] = []
    for tool in sorted(path for path in samples.iterdir() if path.is_dir()):
        for folder in sorted(path for path in tool.iterdir() if path.is_dir()):
            inner = sorted(path for path in folder.iterdir() if path.is_dir())
            is_group = bool(inner) and not any(p.name.startswith(("step", "rank", "proc", "ptdbg")) for p in inner)
            found += inner if is_group else [folder]
    return found


def outcomes(samples: list[Path], seeds: range, until: float = float("inf")) -> Iterator[Outcome]:
    """One import for each seed, until the time (of time.monotonic) is over."""
    _load()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        for seed in seeds:
            if time.monotonic() > until:
                return
            folder = Path(name) / str(seed)
            folder.mkdir()
            yield one(samples, seed, folder)
            _remove(folder)


def one(samples: list[Path], seed: int, folder: Path) -> Outcome:
    """Damage a copy of one sample and import it in a child."""
    rng = random.Random(seed)
    sample = rng.choice(samples)
    canary = folder / "canary"
    dump = copied(sample, folder / "dump")
    done = tuple(damage(folder / "dump", rng, canary))
    before = set(folder.rglob("*"))
    kind = rng.choice(KINDS) if rng.random() < 0.2 else None
    ended, detail, memory = _in_child(dump, folder, kind)
    done = (*done, f"as {kind}")
    if canary.exists():
        ended = "code was run"
    elif memory > MEMORY:
        ended = f"{memory >> 20:,} MiB of memory"
    elif stray := {p for p in folder.rglob("*") if folder / "run" not in (p, *p.parents)} - before - {folder / "said"}:
        ended, detail = "files outside of the run", str(sorted(stray)[:5])
    name = str(sample.relative_to(sample.parents[1]))
    return Outcome(seed=seed, sample=name, ended=ended, detail=detail, damage=done, memory=memory)


def _in_child(dump: Path, folder: Path, kind: str | None) -> tuple[str, str, int]:
    said = folder / "said"
    child = os.fork()
    if not child:
        code = 3
        try:
            _limit()
            _watch(said)
            code = _import(dump, folder / "run", kind)
        except BaseException:  # the parent tells what it was
            said.write_text(traceback.format_exc()[-3000:], encoding="utf-8", errors="replace")
        finally:
            os._exit(code)
    _, status, used = os.wait4(child, 0)
    memory = max(0, used.ru_maxrss * 1024 - _of_an_idle_child())
    detail = said.read_text(encoding="utf-8") if said.exists() else ""
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)} after {used.ru_utime:.0f} s", detail, memory
    code = os.WEXITSTATUS(status)
    ended = (*GOOD, "code was run", "another exception")[code] if code < 4 else f"exit code {code}"
    return ended, detail, memory


def _import(dump: Path, out: Path, kind: str | None) -> int:
    """Import, read and judge; 0 for a run, 1 for an error of ours."""
    try:
        done = import_dump(dump, str(out), kind=kind)
        diagnose(open_run(done.directory))
    except HypocenterError as error:
        return 1 if error.what and error.exit_code else 3
    return 0


def _load() -> None:
    """Import what an import needs, once for all children."""
    for package in ("importing", "record", "detect", "diagnose", "compare.weights"):
        path = [str(Path(hypocenter.__file__).parent / package.replace(".", "/"))]
        for found in pkgutil.walk_packages(path, f"hypocenter.{package}."):
            import_module(found.name)


@cache
def _of_an_idle_child() -> int:
    """Bytes of a child that does nothing."""
    child = os.fork()
    if not child:
        os._exit(0)
    return os.wait4(child, 0)[2].ru_maxrss * 1024


def _limit() -> None:
    n_pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = n_pages * resource.getpagesize() + _ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _watch(said: Path) -> None:
    """End the process where an import would run something."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _RUNS_CODE:
            fd = os.open(said, os.O_WRONLY | os.O_CREAT)
            os.write(fd, f"{event} {args!r}"[:2000].encode())
            os._exit(2)

    sys.addaudithook(hook)


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
    folder.rmdir()
