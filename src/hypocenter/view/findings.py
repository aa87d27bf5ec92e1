"""What is wrong with a followed run: at once from the evidence of its failures, later from a whole diagnosis.

Evidence is a small file that a failed step leaves. A whole diagnosis reads all rows, so a child process makes it: when
the run has ended, and before that so seldom that it takes at most a twentieth of the time.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hypocenter.diagnose import deaths
from hypocenter.diagnose.evidence import Evidence
from hypocenter.diagnose.fold import fold
from hypocenter.diagnose.judged_evidence import JudgedEvidence, RunEvidence, load
from hypocenter.diagnose.records import Records
from hypocenter.nouns import Diagnosis, Finding, replace
from hypocenter.record.layout import DIAGNOSIS_FILE, EVIDENCE_FILE, RUN_FILE
from hypocenter.record.tail import read_regular
from hypocenter.report.sites import SiteLine
from hypocenter.view.following import FollowedRun

MOST_RECORDED_BYTES = 256 << 20  # a larger recording is diagnosed by `hypocenter check`, where its memory is one's own
MOST_RANKS = 2048  # nor are more folders looked through
MOST_ANSWER_BYTES = 64 << 20
_PAUSE_FACTOR, _LEAST_PAUSE_S = 20.0, 10.0  # a diagnosis that took a second is made again after 20
_CHILD_S = 300.0
_MOST_EVIDENCE = 200  # files
_CHILDREN = threading.BoundedSemaphore(1)  # a login node is no place for more


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a child process says of a run: the answer to `diagnose RUN`."""

    diagnosis: Diagnosis
    sites: tuple[SiteLine, ...]  # in the order of `hypocenter show`


class Findings:
    """The findings of one run; `diagnosis` is the best that is known, `None` before anything is.

    Args:
        run: that is followed.
        changed: called when a child process has brought a diagnosis.
    """

    def __init__(self, run: FollowedRun, changed: Callable[[], None] = lambda: None) -> None:
        self._run, self._changed = run, changed
        self.diagnosis: Diagnosis | None = None
        self.evidence: dict[str, Evidence] = {}
        self.sites: tuple[SiteLine, ...] | None = None  # None: no child process has looked yet
        self.why_not = ""
        self._pieces: list[JudgedEvidence] = []
        self._ends: list[Finding] = []  # what the ranks' ends say
        self._read: set[Path] = set()
        self._folders_ns: dict[int, int] = {}
        self._file_ns = self._evidence_ns = 0
        self._of_version = -1  # of the run, that the last whole diagnosis was made of
        self._tried_version = -1
        self._next_s = 0.0
        self._child: threading.Thread | None = None

    def look(self, *, diagnoses: bool = True) -> bool:
        """Take in new evidence, and a diagnosis that somebody has written; return whether anything is new.

        Args:
            diagnoses: whether a child process may make one.
        """
        is_new = self._look_at_evidence() | self._look_at_ends()
        if is_new:
            self._from_evidence()
        is_new |= self._look_at_file()
        if diagnoses:
            self._diagnose()
        return is_new

    @property
    def is_whole(self) -> bool:
        """Whether the diagnosis was made from all rows of the run as it is now."""
        return self._of_version == self._run.version

    def _look_at_evidence(self) -> bool:
        new, notes = list[tuple[int, Path]](), self._run.notes
        for rank, folder in self._run.folders.items():
            note = notes.get(rank)
            changed_ns = modified_ns(folder / "bundles") if note is None else note.evidence_ns
            if changed_ns in (0, self._folders_ns.get(rank)):
                continue
            bundles = folder / "bundles"
            found = [p for p in sorted(bundles.glob(f"*/{EVIDENCE_FILE}")) if _is_inside(p, self._run.directory)]
            new += [(rank, path) for path in found if path not in self._read]
            if len(found) == sum(1 for _ in bundles.iterdir()):  # else one is being written
                self._folders_ns[rank] = changed_ns
            self._evidence_ns = max(self._evidence_ns, changed_ns)
        new = new[: _MOST_EVIDENCE - len(self._read)]
        self._read |= {path for _, path in new}
        self._pieces += load(new, self._run.directory).found if new else ()
        self.evidence |= {p.finding.bundle: p.evidence for p in self._pieces if p.finding.bundle}
        return bool(new)

    def _look_at_ends(self) -> bool:
        """Ask what became of the ranks; return whether that is another thing than before."""
        found, before = self._run.lives.findings, self._ends
        self._ends = found
        return [(f.code, f.rank, f.title) for f in found] != [(f.code, f.rank, f.title) for f in before]

    def _from_evidence(self) -> None:
        """Make a diagnosis of the failures alone: what the rules would add comes with the whole one."""
        self._pieces.sort(key=lambda piece: (piece.finding.step, not piece.is_located, piece.finding.rank))
        known = self._run.course.last_step + 1
        evidence, dead = deaths.apart(RunEvidence(found=tuple(self._pieces)))
        found = deaths.explained(self._ends, dead)
        folded = fold(evidence.found, [f for f in found if f.code != deaths.CODE], Records({}))
        folded = deaths.with_deaths(folded, [f for f in found if f.code == deaths.CODE])
        has_any = any(f.finding.severity != "note" for f in folded)
        self.diagnosis = Diagnosis(
            run=self._run.run.name, status="findings" if has_any else "cannot-tell",
            findings=tuple(self._placed(f.finding) for f in folded), n_steps=known, n_ranks=self._run.n_ranks,
            why=("it is judged by the evidence of its failures alone",),
        )  # fmt: skip
        self._of_version = -1
        self._next_s = 0.0  # a whole one is wanted soon

    def _placed(self, finding: Finding) -> Finding:
        place = self._run.places.get(finding.rank)
        return finding if place is None else replace(finding, coords=place.coords)

    def _look_at_file(self) -> bool:
        """Read diagnosis.json, which `hypocenter run` and `check` write; return whether it is new."""
        path = self._run.directory / DIAGNOSIS_FILE
        try:
            changed_ns = path.stat().st_mtime_ns
            if changed_ns == self._file_ns:
                return False
            self._file_ns = changed_ns
            found = from_json(read_regular(path, MOST_ANSWER_BYTES))
        except (OSError, ValueError, TypeError, RecursionError):
            return False
        if changed_ns >= max(self._evidence_ns, modified_ns(self._run.directory / RUN_FILE)):
            self._take(found)
        elif self.diagnosis is None:  # of an earlier state of the run
            self.diagnosis = found
        return True

    def _take(self, found: Diagnosis) -> None:
        self.diagnosis, self._of_version = found, self._run.version

    def _diagnose(self) -> None:
        """Begin a whole diagnosis in a child process, if there is need and it is time."""
        now_s = time.monotonic()
        known = self._tried_version if self.sites is None else max(self._of_version, self._tried_version)
        is_due = known < self._run.version and now_s >= self._next_s
        if self._child is not None or not is_due or self._run.course.last_step < 0:
            return
        if self._run.n_ranks > MOST_RANKS:
            self.why_not, self._next_s = f"it has {self._run.n_ranks:,} ranks, more than are read here", now_s + 600
            return
        if holds_links(self._run.directory):
            self.why_not, self._next_s = "it holds links, which are not followed here", now_s + 600
            return
        size = recorded_bytes(self._run.directory)
        if size > MOST_RECORDED_BYTES:
            self.why_not = f"the recording has {size >> 20:,} MiB, more than is read here"
            self._next_s = now_s + 600
            return
        self._child = threading.Thread(target=self._in_child, args=(self._run.version,), daemon=True)
        self._child.start()

    def _in_child(self, version: int) -> None:
        started = time.monotonic()
        try:
            data = in_child("diagnose", str(self._run.directory))
            told = msgspec.msgpack.decode(data, type=Told)
            found, self.sites = told.diagnosis, told.sites
            codes = {finding.code for finding in self._ends}
            is_later = any(finding.bundle or finding.code in codes for finding in found.findings)
            if is_later or not (self._pieces or self._ends) or not self._run.is_running:
                self.diagnosis, self._of_version = found, version
            self.why_not = ""
        except Exception as error:
            self.why_not = f"it could not be diagnosed ({type(error).__name__})"
        self._tried_version = version
        self._next_s = time.monotonic() + max(_LEAST_PAUSE_S, _PAUSE_FACTOR * (time.monotonic() - started))
        self._child = None
        self._changed()


def from_json(data: bytes) -> Diagnosis:
    """Read diagnosis.json, in which numbers that JSON lacks are texts. Raises ValueError or TypeError."""
    loose: Any = msgspec.json.decode(data)
    for finding in loose.get("findings", ()) if isinstance(loose, Mapping) else ():
        for name in ("limit", "actual"):
            if isinstance(finding.get(name), str):
                finding[name] = float(finding[name])
    return msgspec.convert(loose, type=Diagnosis)


def modified_ns(path: Path) -> int:
    """Return when a file was last changed, in nanoseconds; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def holds_links(directory: Path) -> bool:
    """Return whether anything below is a link, a pipe or a device: a child process would follow it."""
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            mode = os.lstat(Path(folder) / name).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                return True
    return False


def recorded_bytes(directory: Path) -> int:
    """Return the size of a recording's rows in bytes."""
    return sum(path.stat().st_size for path in directory.glob("rank-*/*") if path.is_file())


def in_child(*words: str) -> bytes:
    """Return the answer of `hypocenter.view.child`; one child runs at a time, and its memory goes with it.

    Raises:
        OSError, subprocess.SubprocessError: it could not be started, failed, or took too long.
    """
    command = [sys.executable, "-m", "hypocenter.view.child", *words]
    with _CHILDREN:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_CHILD_S, check=True)
    if len(done.stdout) > MOST_ANSWER_BYTES:
        raise OSError("the answer is too large")
    return done.stdout


def _is_inside(path: Path, directory: Path) -> bool:
    try:
        return path.resolve().is_relative_to(directory.resolve()) and path.is_file()
    except (OSError, RuntimeError):
        return False
