"""A rank's files on their way to where they stay: an object store, or another folder. Local first, never waited for.

There is a file elsewhere once it stands in the rank's `manifest.json` there, with its size and SHA-256. That is
written after the files themselves, and what it no longer names is deleted after that: whoever reads it finds each file
whole, whatever moment the shipping was cut off at. What is being written is shipped as it is at that moment, each time
under another name: a step that was acknowledged once never depends on whether the next round arrives.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hypocenter.record.address import filesystem_of
from hypocenter.record.layout import RUN_FILE, STREAM_SUFFIX

MANIFEST = "manifest.json"
_LARGEST_MANIFEST = 64 << 20
SHIP_EVERY_S = 600.0  # a machine that dies with its disk loses at most so much, and what is under way
OVER = b"over\n"  # said to the process that ships
_LISTEN_EVERY_S = 10.0
_LOOKS = 5
_MOMENT = re.compile(r".+\.[0-9a-f]{12}")  # of a file that was being written
_PIECE = 1 << 20
_ACKNOWLEDGED_TOGETHER = 8  # files
_ERRORS_AT_MOST = 3  # files of one round that do not arrive, before it is given up


class Shipped(msgspec.Struct, frozen=True):
    """Size and checksum of a file that is elsewhere, and what it is called there if that is not its name."""

    size: int
    sha256: str
    object: str = ""


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
    _doomed: set[str] = field(default_factory=set[str])

    def ship(self, is_over: bool) -> None:
        """Make the files there the same as those here.

        Args:
            is_over: nobody writes any more. Else what is being written goes as it is at this moment.
        """
        filesystem, root = self._filesystem = self._filesystem or filesystem_of(self.address)
        base = f"{root}/{self.folder.name}"
        there = self._there = self._there or self._read(filesystem, base)
        before = {state.object or name for name, state in there.files.items()}
        settled, growing = self._look(is_over)
        changed = [(name, state) for name, state in settled.items() if there.files.get(name) != state]
        errors: list[Exception] = []
        has_all = growing is not None
        for i, (name, state) in enumerate(changed):
            if len(errors) >= _ERRORS_AT_MOST:
                break
            try:
                if self._put(filesystem, self.folder / name, f"{base}/{name}", state):
                    there.files[name] = state
                else:
                    has_all = False
            except Exception as error:  # the other files may arrive all the same
                errors.append(error)
            if i % _ACKNOWLEDGED_TOGETHER == _ACKNOWLEDGED_TOGETHER - 1:
                self._acknowledge(filesystem, base, there)
        try:  # streams and the journal that goes with them: all of them are acknowledged at once, or none
            there.files.update(self._put_growing(filesystem, base, growing or {}))
        except Exception as error:
            errors.append(error)
        if has_all and not errors:
            here = settled.keys() | (growing or {}).keys()
            there.files = {name: state for name, state in there.files.items() if name in here}
        objects = {state.object or name for name, state in there.files.items()}
        if changed or objects != before:
            self._acknowledge(filesystem, base, there)
        # What is no longer named stays for a round: who has read the manifest before is still fetching it.
        doomed, self._doomed = self._doomed - objects, before - objects
        if is_over and not errors:
            doomed |= self._doomed | self._unnamed(filesystem, base, objects)
        for name in doomed:
            with suppress(FileNotFoundError):
                filesystem.rm_file(f"{base}/{name}")
        if errors:
            raise errors[0]
        for name in self.also:
            if (self.run / name).exists():
                filesystem.pipe_file(f"{root}/{name}", (self.run / name).read_bytes())

    def left(self, why: str) -> str:
        """Return the sentence that says that not all is there, and how to bring it."""
        again = f"hypocenter ship {self.run} {self.address}"
        return f"not all of {self.folder.name} got to {self.address} ({why}): {again}"

    def unshipped(self) -> list[str]:
        """Return the files here that are not known to be there as they are."""
        there = self._there.files if self._there is not None else {}
        return [name for name, state in self._look(True)[0].items() if there.get(name) != state]

    def _acknowledge(self, filesystem: Any, base: str, there: Manifest) -> None:
        _pipe_whole(filesystem, f"{base}/{MANIFEST}", msgspec.json.encode(there))

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
            found = read_manifest(filesystem.cat_file(f"{base}/{MANIFEST}"))
            named = found.files.items()  # by whoever may write there: what it names is deleted in its time
            found.files = {name: s for name, s in named if ".." not in f"{name}/{s.object}".split("/")}
            return found
        except (FileNotFoundError, msgspec.MsgspecError):
            return Manifest()

    def _unnamed(self, filesystem: Any, base: str, objects: Collection[str]) -> set[str]:
        """Return what rounds that were cut off have left there of files that were being written."""
        names = {str(path).rpartition("/")[2] for path in filesystem.ls(base, detail=False)}
        return {name for name in names - set(objects) if _MOMENT.fullmatch(name)}

    def _put_growing(self, filesystem: Any, base: str, growing: dict[str, bytes]) -> dict[str, Shipped]:
        """Bring what was read of files that are being written; return what they are called there. Streams go first.

        Who reads a folder there without its manifest then meets no journal whose steps are in a batch yet to come.
        """
        found: dict[str, Shipped] = {}
        there = self._there.files if self._there is not None else {}
        for name, data in sorted(growing.items(), key=lambda item: item[0].startswith("journal-")):
            digest = hashlib.sha256(data).hexdigest()
            is_local = _is_local(filesystem)
            state = Shipped(size=len(data), sha256=digest, object="" if is_local else f"{name}.{digest[:12]}")
            if there.get(name) != state:
                _pipe_whole(filesystem, f"{base}/{state.object or name}", data)
                if not is_local and (size := filesystem.info(f"{base}/{state.object}")["size"]) != len(data):
                    raise OSError(f"{name} arrived with {size:,} of {len(data):,} bytes")
            found[name] = state
        return found

    def _look(self, is_over: bool) -> tuple[dict[str, Shipped], dict[str, bytes] | None]:
        """Return the files here, and what is in those that are being written: of one moment between two segments.

        None for these where segments end faster than they can be read: they stay there as they are.
        """
        settled: dict[str, Shipped] = {}
        for _ in range(_LOOKS):
            names = self._names()
            growing = [] if is_over else [name for name in names if is_being_written(name)]
            try:
                settled = {name: self._digest(name) for name in names if name not in growing}
                # A journal goes before the streams that its steps will be in, as whoever reads them does it.
                growing.sort(key=lambda name: not name.startswith("journal-"))
                read = {name: (self.folder / name).read_bytes() for name in growing}
            except FileNotFoundError:
                continue
            if is_over or self._names() == names:
                return settled, read
        return settled, None

    def _names(self) -> list[str]:
        """Return the paths of all files, below the rank's folder."""
        found = (path for path in self.folder.rglob("*") if not path.name.startswith("."))
        return sorted(p.relative_to(self.folder).as_posix() for p in found if p.is_file() and not p.is_symlink())

    def _digest(self, name: str) -> Shipped:
        """Return size and SHA-256 of a file, which is read again only if it was changed. Raises FileNotFoundError."""
        path = self.folder / name
        stat = path.stat()
        at, state = self._known.get(name, ((-1, -1), None))
        if state is None or at != (stat.st_size, stat.st_mtime_ns):
            state = digest_of(path)
            self._known[name] = (stat.st_size, stat.st_mtime_ns), state
        return state


def _pipe_whole(filesystem: Any, path: str, data: bytes) -> None:
    """Write a file that is whole at every moment: in a folder, one that is written in place is not."""
    if _is_local(filesystem):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        part = Path(path).with_name(f".{Path(path).name}")
        part.write_bytes(data)
        part.replace(path)
    else:
        filesystem.pipe_file(path, data)
        filesystem.invalidate_cache()


def _is_local(filesystem: Any) -> bool:
    protocol = filesystem.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


class Shipper:
    """Has a process ship a rank's files each so often, and the rest once this one is over, however it ends.

    It shares no lock, no interpreter and no memory with training, which takes no part in it.

    Args:
        freight: what goes where.
        warn: takes one line of text: once when shipping fails, once when it goes on, once at the end for what is left.
        every_s: seconds from the end of one round to the next.
    """

    def __init__(self, freight: Freight, warn: Callable[[str], None], every_s: float = SHIP_EVERY_S) -> None:
        self._freight, self._warn, self._asked_s = freight, warn, time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = os.getpid()  # a fork of the program neither ends it nor hears it
        command = [sys.executable, "-m", "hypocenter.record.ship_apart", str(freight.run), str(freight.folder)]
        env = {name: value for name, value in os.environ.items() if not name.startswith("HYPOCENTER_")}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), env.get("PYTHONPATH", "")]))
        try:
            self._process = subprocess.Popen(
                [*command, freight.address, str(every_s), *freight.also], env=env, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._say(self._freight.left(f"no process can be started: {error}"))

    def look(self) -> None:
        """Pass on what the process has to say. Costs next to nothing, and waits for nothing."""
        is_due = time.monotonic() - self._asked_s > _LISTEN_EVERY_S
        if is_due and self._process is not None and os.getpid() == self._pid:
            self._asked_s = time.monotonic()
            self._listen(self._process)

    def close(self, timeout_s: float) -> bool:
        """Have the rest shipped, within `timeout_s`, or say that it is only here; return whether all is there."""
        process, self._process = self._process, None
        if os.getpid() != self._pid or process is None or process.stdin is None or process.stdout is None:
            return False
        with suppress(OSError):
            process.stdin.write(OVER)  # its end alone does not come while a forked worker of a loader lives
            process.stdin.close()
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            code, why = process.wait(), f"it took more than {timeout_s:.0f} s"
        else:
            why = f"exit code {code}"
        if not self._listen(process) and code:
            self._say(self._freight.left(why))
        process.stdout.close()
        return code == 0

    def _listen(self, process: subprocess.Popen[bytes]) -> int:
        """Warn of what was said since the last time; return how many lines."""
        if process.stdout is None:
            return 0
        said = b""
        with suppress(OSError, ValueError):
            os.set_blocking(process.stdout.fileno(), False)
            said = process.stdout.read() or b""
        lines = said.decode("utf-8", "replace").splitlines()
        for line in lines:
            self._say(line)
        return len(lines)

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
        freight.ship(is_over=True)
        left = freight.unshipped()
        if left:
            raise OSError(f"{len(left):,} files changed while they were shipped: {left[0]}")
        n_files += sum(1 for path in folder.rglob("*") if path.is_file())
    return n_files
