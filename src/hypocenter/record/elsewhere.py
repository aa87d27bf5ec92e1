"""A recording that lies elsewhere, read through a folder here that holds what was asked for so far.

What a rank's manifest names is brought over when it is first needed: small files and evidence at once, rows of a kind
when rows of that kind are asked for. What was brought over is checked against the manifest's SHA-256, and kept: only
what has changed is brought over again.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from hypocenter.errors import CorruptRecordingError, NoRecordingError
from hypocenter.record.address import filesystem_of, without_secrets
from hypocenter.record.layout import EVIDENCE_FILE, RUN_FILE, rank_directory
from hypocenter.record.shipping import MANIFEST, Manifest, digest_of, read_manifest
from hypocenter.record.whole_file import write_whole

NOTES = ".elsewhere.json"  # in a rank's folder here: where it came from, and what of it is here
_SMALL_BYTES = 4 << 20
_ROWS = ("events", "steps", "windows")
_LOOKS = 3
_locks: dict[Path, threading.Lock] = {}


class Notes(msgspec.Struct):
    """What is known here of a rank that lies elsewhere."""

    address: str
    manifest: Manifest
    here: dict[str, str] = msgspec.field(default_factory=dict[str, str])  # name -> SHA-256 of what is here


def brought(address: str) -> Path:
    """Return the local folder that stands for a recording elsewhere.

    Raises:
        ConfigError: such an address cannot be reached.
        NoRecordingError: there is no recording, or the store does not answer.
    """
    filesystem, root = filesystem_of(address)
    here = _cache() / f"{PurePosixPath(root).name}-{hashlib.sha256(address.encode()).hexdigest()[:16]}"
    try:
        filesystem.invalidate_cache()
        folders = [str(name).rstrip("/") for name in filesystem.ls(root, detail=False)]
        ranks = [name for name in folders if PurePosixPath(name).name.startswith("rank-")]
        found = filesystem.cat([f"{name}/{MANIFEST}" for name in ranks], on_error="omit") if ranks else {}
        run = filesystem.cat_file(f"{root}/{RUN_FILE}") if f"{root}/{RUN_FILE}" in folders else None
    except Exception as error:
        why = without_secrets(f"{type(error).__name__}: {error}")[:300]
        raise NoRecordingError("no recording can be read there", where=address, why=why) from error
    here.mkdir(parents=True, exist_ok=True)
    if run is not None:
        (here / RUN_FILE).write_bytes(run)
    for path, data in found.items():
        name = PurePosixPath(str(path)).parent.name
        if name == rank_directory(here, int(name.removeprefix("rank-") or "0")).name:
            _noted(here / name, f"{address}/{name}", data)
    return here


def bring(folder: Path, kinds: Collection[str]) -> None:
    """Bring over the rows of some kinds of a rank whose folder stands for one elsewhere; else do nothing.

    Raises:
        CorruptRecordingError: what came is not what the manifest says.
        OSError: the store does not answer, or the disk is full.
    """
    if (folder / NOTES).exists():
        wanted = {*kinds, "journal"}
        _bring(folder, lambda name: name.removeprefix("sealed-").split("-")[0] in wanted)


def _noted(folder: Path, address: str, data: bytes) -> None:
    try:
        manifest = read_manifest(data)
    except msgspec.MsgspecError as error:
        raise CorruptRecordingError("a manifest cannot be read", where=address, why=str(error)) from error
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        notes = _read(folder) or Notes(address=address, manifest=manifest)
        notes.manifest = manifest
        for name in [n for n in notes.here if n not in manifest.files]:
            (folder / name).unlink(missing_ok=True)
            del notes.here[name]
        _write(folder, notes)
    _bring(folder, lambda name: _is_wanted_at_once(name, manifest))


def _is_wanted_at_once(name: str, manifest: Manifest) -> bool:
    path = PurePosixPath(name)
    if len(path.parts) > 1:
        return path.name == EVIDENCE_FILE
    return path.name.removeprefix("sealed-").split("-")[0] not in _ROWS and manifest.files[name].size <= _SMALL_BYTES


def _bring(folder: Path, is_wanted: Callable[[str], bool]) -> None:
    with _lock(folder):
        notes = _read(folder)
        if notes is None:
            return
        for _ in range(_LOOKS):
            missing = [n for n, s in notes.manifest.files.items() if is_wanted(n) and notes.here.get(n) != s.sha256]
            if not missing:
                return
            filesystem, base = filesystem_of(notes.address)
            replaced = [name for name in missing if not _fetched(filesystem, base, folder, name, notes)]
            if not replaced:
                return
            filesystem.invalidate_cache()  # the manifest that tells of the other is there by now, or soon
            notes.manifest = read_manifest(filesystem.cat_file(f"{base}/{MANIFEST}"))
            _write(folder, notes)
        raise CorruptRecordingError(
            "what came over is not what was shipped", where=notes.address,
            why="the SHA-256 of a file is another than the manifest's",
        )  # fmt: skip


def _fetched(filesystem: Any, base: str, folder: Path, name: str, notes: Notes) -> bool:
    """Bring one file; return whether it is what the manifest says."""
    target, there = (folder / name).resolve(), notes.manifest.files[name]
    if not target.is_relative_to(folder.resolve()):
        raise CorruptRecordingError("a manifest names a file outside of its folder", where=notes.address, why=name)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}-{os.getpid()}-{threading.get_ident()}")
    try:
        filesystem.get_file(f"{base}/{there.object or name}", str(part))
        if digest_of(part).sha256 != there.sha256:
            return False
        part.replace(target)
        notes.here[name] = there.sha256
        _write(folder, notes)
    except FileNotFoundError:
        return False
    finally:
        part.unlink(missing_ok=True)
    return True


def _lock(folder: Path) -> threading.Lock:
    return _locks.setdefault(folder, threading.Lock())


def _read(folder: Path) -> Notes | None:
    try:
        return msgspec.json.decode((folder / NOTES).read_bytes(), type=Notes)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(folder: Path, notes: Notes) -> None:
    write_whole(folder / NOTES, msgspec.json.encode(notes))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hypocenter"
