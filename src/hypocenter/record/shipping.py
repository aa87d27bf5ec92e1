"""A rank's files on their way to where they stay: an object store, or another folder. Local first, never waited for.

There is a file elsewhere once it stands in the rank's `manifest.json` there, with its size and SHA-256. That is
written after the files themselves, and what it no longer names is deleted after that: whoever reads it finds each file
whole, whatever moment the shipping was cut off at. What is being written, and the journal, are shipped once their
segment has ended: of a machine that dies with its disk those last steps are lost, and no others.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hypocenter.record.address import filesystem_of, without_secrets
from hypocenter.record.layout import RUN_FILE, STREAM_SUFFIX

MANIFEST = "manifest.json"
_LARGEST_MANIFEST = 64 << 20
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
_LONGEST_ROUND_S = 3600.0
_PIECE = 1 << 20
_ACKNOWLEDGED_TOGETHER = 8  # files
_ERRORS_AT_MOST = 3  # files of one round that do not arrive, before it is given up


class Shipped(msgspec.Struct, frozen=True):
    """Size and checksum of a file that is elsewhere."""

    size: int
    sha256: str


class Manifest(msgspec.Struct):
    """manifest.json of a rank: which of its files are there, by path below the rank's folder."""

    format: int = 1
    files: dict[str, Shipped] = msgspec.field(default_factory=dict[str, Shipped])


def read_manifest(data: bytes) -> Manifest:
    """Read a manifest. Raises msgspec.MsgspecError for bytes that are none."""
    return msgspec.json.decode(data[:_LARGEST_MANIFEST], type=Manifest)


def is_being_written(name: str) -> bool:
    """Return whether a file so named changes while its process lives: streams, the journal, whereabouts."""
    return name.endswith(STREAM_SUFFIX) or name.startswith(("journal-", "whereabouts"))


def digest_of(path: Path) -> Shipped:
    """Return the size and SHA-256 of a file. Raises OSError."""
    found, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
            size += len(piece)
    return Shipped(size=size, sha256=found.hexdigest())


@dataclass(slots=True, kw_only=True)
class Freight:
    """One rank's files, and where they go. Methods may raise whatever the file system elsewhere raises.

    Args:
        run: the run directory here.
        folder: of the rank, here.
        address: of the run, elsewhere.
        also: files of the run itself that this rank ships.
    """

    run: Path
    folder: Path
    address: str
    also: tuple[str, ...] = ()
    _there: Manifest | None = None
    _known: dict[str, tuple[tuple[int, int], Shipped]] = field(
        default_factory=dict[str, tuple[tuple[int, int], Shipped]]
    )
    _filesystem: tuple[Any, str] | None = None

    def ship(self, left_out: Callable[[str], bool], stop: Callable[[], bool] = lambda: False) -> None:
        """Make the files there the same as those here.

        Args:
            left_out: whether a file is still being written.
            stop: asked before each file: whether to come to an end, with what is shipped so far acknowledged.
        """
        filesystem, root = self._filesystem = self._filesystem or filesystem_of(self.address)
        base = f"{root}/{self.folder.name}"
        there = self._there = self._there or self._read(filesystem, base)
        here = self._here(left_out)
        changed = [(name, state) for name, state in here.items() if there.files.get(name) != state]
        errors: list[Exception] = []
        for i, (name, state) in enumerate(changed):
            if stop() or len(errors) >= _ERRORS_AT_MOST:
                break
            try:
                if self._put(filesystem, self.folder / name, f"{base}/{name}", state):
                    there.files[name] = state
            except Exception as error:  # the other files may arrive all the same
                errors.append(error)
            if i % _ACKNOWLEDGED_TOGETHER == _ACKNOWLEDGED_TOGETHER - 1:
                self._acknowledge(filesystem, base, there)
        is_cut = stop() or bool(errors)
        gone = [] if is_cut else [name for name in there.files if name not in here]
        for name in gone:
            del there.files[name]
        if changed or gone:
            self._acknowledge(filesystem, base, there)
        for name in gone:
            with suppress(FileNotFoundError):
                filesystem.rm_file(f"{base}/{name}")
        if errors:
            raise errors[0]
        for name in self.also:
            if (self.run / name).exists():
                filesystem.pipe_file(f"{root}/{name}", (self.run / name).read_bytes())

    def unshipped(self, left_out: Callable[[str], bool] = lambda _: False) -> list[str]:
        """Return the files here that are not known to be there as they are."""
        there = self._there.files if self._there is not None else {}
        return [name for name, state in self._here(left_out).items() if there.get(name) != state]

    def _acknowledge(self, filesystem: Any, base: str, there: Manifest) -> None:
        filesystem.makedirs(base, exist_ok=True)
        path = f"{base}/{MANIFEST}"
        if _is_local(filesystem):  # a folder: a file that is written in place is not whole at every moment
            filesystem.pipe_file(f"{base}/.{MANIFEST}", msgspec.json.encode(there))
            Path(f"{base}/.{MANIFEST}").replace(path)
        else:
            filesystem.pipe_file(path, msgspec.json.encode(there))

    def _put(self, filesystem: Any, path: Path, target: str, state: Shipped) -> bool:
        """Bring a file there; return whether it is there now as it was when it was looked at."""
        try:
            if _is_local(filesystem):
                filesystem.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH120 - of a path elsewhere
            filesystem.put_file(str(path), target)
            if digest_of(path) != state:
                return False  # it was replaced meanwhile: the next round takes it
        except FileNotFoundError:
            if path.exists():
                raise
            return False
        filesystem.invalidate_cache()
        size = filesystem.info(target)["size"]
        if size != state.size:
            raise OSError(f"{path.name} arrived with {size:,} of {state.size:,} bytes")
        return True

    def _read(self, filesystem: Any, base: str) -> Manifest:
        try:
            return read_manifest(filesystem.cat_file(f"{base}/{MANIFEST}"))
        except (FileNotFoundError, msgspec.MsgspecError):
            return Manifest()

    def _here(self, left_out: Callable[[str], bool]) -> dict[str, Shipped]:
        found: dict[str, Shipped] = {}
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if path.name.startswith(".") or left_out(path.name) or path.is_symlink():
                continue
            try:
                if not path.is_file():
                    continue
                stat = path.stat()
                at, state = self._known.get(name, ((-1, -1), None))
                if state is None or at != (stat.st_size, stat.st_mtime_ns):
                    state = digest_of(path)
                    self._known[name] = (stat.st_size, stat.st_mtime_ns), state
                found[name] = state
            except FileNotFoundError:
                continue
        return found


def _is_local(filesystem: Any) -> bool:
    protocol = filesystem.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


Ship = Callable[[Freight, bool, float], str]
"""Ships a rank, all of it or what nobody writes any more, in so many seconds; why not, or nothing."""


def apart(freight: Freight, is_over: bool, timeout_s: float) -> str:
    """Ship in a process of its own: an ending program cannot start threads, which stores' clients need.

    It shares no lock, no interpreter and no memory with training. It goes on when the program dies.
    """
    command = [sys.executable, "-m", "hypocenter.record.ship_apart", str(freight.run), str(freight.folder)]
    command += [freight.address, *(["--over"] if is_over else []), *freight.also]
    env = {name: value for name, value in os.environ.items() if not name.startswith("HYPOCENTER_")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), env.get("PYTHONPATH", "")]))
    try:
        ended = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False,
            start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it took more than {timeout_s:.0f} s"
    if ended.returncode == 0:
        return ""
    lines = ended.stderr.decode("utf-8", "replace").strip().splitlines()
    return without_secrets(lines[-1])[:200] if lines else f"exit code {ended.returncode}"


class Shipper:
    """Ships whenever it is told that there is something new. Its thread lives only while there is.

    Args:
        freight: what goes where.
        warn: takes one line of text: once when shipping fails, once when it goes on, once at the end for what is left.
        ship: how.
    """

    def __init__(self, freight: Freight, warn: Callable[[str], None], ship: Ship = apart) -> None:
        self._freight, self._warn, self._ship = freight, warn, ship
        self._lock, self._called_off = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._n_asked = self._n_done = 0
        self._is_failing = False

    def ask(self) -> None:
        """Say that there is something new to ship. Returns at once."""
        with self._lock:
            self._n_asked += 1
            if self._thread is None and not self._called_off.is_set():
                thread = threading.Thread(target=self._run, name="hypocenter-ship", daemon=True)
                with suppress(RuntimeError):  # the interpreter ends: `close` ships the rest
                    thread.start()
                    self._thread = thread

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was asked for is there; return whether it is."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return self._n_done == self._n_asked

    def close(self, timeout_s: float) -> None:
        """Ship the rest, within `timeout_s`, or say that it is only here: nobody writes any more."""
        self._called_off.set()
        self.wait(timeout_s)
        why = self._ship(self._freight, True, timeout_s)
        if why:
            self._say(
                f"not all of {self._freight.folder.name} got to {self._freight.address} ({why}): "
                f"hypocenter ship {self._freight.run} {self._freight.address}"
            )

    def _run(self) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            with self._lock:
                asked = self._n_asked
                if asked == self._n_done or self._called_off.is_set():
                    self._thread = None
                    return
            if why := self._ship(self._freight, False, _LONGEST_ROUND_S):
                self._failed(why)
                self._called_off.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                continue
            if self._is_failing:
                self._is_failing = False
                self._say(f"{self._freight.folder.name} is shipped to {self._freight.address} again")
            wait_s, self._n_done = _FIRST_WAIT_S, asked

    def _failed(self, why: str) -> None:
        if not self._is_failing:
            self._is_failing = True
            self._say(f"shipping to {self._freight.address} fails, it is tried again and training goes on ({why})")

    def _say(self, text: str) -> None:
        try:
            self._warn(text)
        except Exception:
            self._warn = lambda _: None


def ship_run(run: Path, address: str, ranks: Collection[Path]) -> int:
    """Ship all of a recording that nobody writes any more; return the number of files. Raises as the store does."""
    n_files = 0
    for i, folder in enumerate(sorted(ranks)):
        freight = Freight(run=run, folder=folder, address=address, also=(RUN_FILE,) if i == 0 else ())
        freight.ship(lambda _: False)
        left = freight.unshipped()
        if left:
            raise OSError(f"{len(left):,} files changed while they were shipped: {left[0]}")
        n_files += sum(1 for path in folder.rglob("*") if path.is_file())
    return n_files
