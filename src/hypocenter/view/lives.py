"""Where each rank of a followed job is, and whether it lives: what its file `whereabouts` says, and its process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hypocenter.detect.endings import Ending, Job
from hypocenter.detect.group_engine import GroupEngine, group_rules
from hypocenter.nouns import Finding, Place, Run
from hypocenter.record.liveness import Liveness, liveness
from hypocenter.record.node_file import RankNote
from hypocenter.record.whereabouts import WHEREABOUTS_FILE, Whereabouts, read_whereabouts

EVERY_S = 0.5  # between two looks
ASKED_S = 5.0  # between two questions to the rules while all ranks live: they may wait for each other
AT_ONCE = 64  # files that one look opens: of more ranks it reads some, and the next look the next
_ASKED = ("HC321", "HC323", "HC324")  # rules that need no rows
_LIVELIEST_FIRST: tuple[Liveness, ...] = ("running", "unknown", "stopped", "gone")
_SHOWN = {  # how a rank ended -> what is said of it; the others live, or came to their end
    "raised": "died of {what}", "lost peer": "died of {what}", "torn": "ended in the midst of a step",
    "terminated": "ended by SIGTERM", "stopped": "stopped by a signal since {when}", "silent": "silent since {when}",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What was last heard of one rank."""

    seen: Whereabouts
    life: Liveness = "unknown"


class Lives:
    """The ranks of one job. `look` takes in what is new, the rest is asked of what was taken in.

    Args:
        judges: whether rules are asked: not of a part of a job.

    Attributes:
        findings: what rules say of how ranks ended, or where they wait; notes are left to a whole diagnosis. Two looks
            in a row have to say it, unless a process is gone: ranks whose peer died notice one after the other.
    """

    def __init__(self, *, judges: bool = True) -> None:
        self._known: dict[int, Life] = {}
        self._ask_s = 0.0
        self._next_s, self._at = 0.0, 0  # the next look; which ranks' files are next
        self._looked, self._judges = "", judges  # in which status of the run all files were looked at
        self._newest_ns, self._newest_s = 0, 0.0  # the last sign of life of all, and when it came here
        self._ends: dict[int, Ending] = {}
        self._found: list[Finding] = []
        self.findings: list[Finding] = []
        rules = group_rules() if judges else {}  # a process beside training has no room for what it does not ask
        self._asked = GroupEngine({code: rule for code, rule in rules.items() if code in _ASKED})

    def look(
        self, run: Run, folders: Mapping[int, Path], places: Mapping[int, Place], notes: Mapping[int, RankNote]
    ) -> bool:
        """Take in what ranks have written; return whether anything but signs of life has changed.

        Args:
            run: as run.json tells it.
            folders: of the ranks.
            places: where they stand.
            notes: what their nodes say: of these no file is opened.
        """
        now_s = time.monotonic()
        if now_s < self._next_s or self._looked == run.status != "running":
            return False
        self._next_s, before = now_s + EVERY_S, self._sign()
        for rank, note in notes.items():
            known = self._known.get(rank)
            if note.seen is not None and (known is None or known.seen is not note.seen):
                self._known[rank] = Life(seen=note.seen, life=note.life)
        ranks = [rank for rank in folders if rank not in notes]
        self._at = self._at if self._at < len(ranks) else 0
        for rank in ranks[self._at : self._at + AT_ONCE]:
            path = folders[rank] / WHEREABOUTS_FILE
            seen = read_whereabouts(folders[rank]) if path.is_file() and not path.is_symlink() else None
            if seen is not None:
                self._known[rank] = Life(seen=seen, life=liveness(seen))
        self._at += AT_ONCE
        self._looked = run.status if self._at >= len(ranks) else self._looked
        self._known = {rank: known for rank, known in self._known.items() if rank in folders}
        if not self._judges:
            return False
        newest_ns = max((known.seen.last_ns for known in self._known.values()), default=0)
        if newest_ns != self._newest_ns:
            self._newest_ns, self._newest_s = newest_ns, now_s
        job = self._job(run, places)
        self._ends = job.ends
        is_amiss = any(end.how in _SHOWN for end in self._ends.values())
        if len(self._known) < 2 or not (is_amiss or self._found or now_s >= self._ask_s):
            return self._sign() != before
        self._ask_s = now_s + ASKED_S
        found = [f for f in self._asked.end(job) if f.severity != "note"]
        said = {_short(finding) for finding in self._found}
        self._found, self.findings = found, [f for f in found if _short(f) in said or self._is_gone(f)]
        return self._sign() != before

    def _job(self, run: Run, places: Mapping[int, Place]) -> Job:
        """Return the job as rules about its end see it: the latest attempt. Its time is that of the ranks' clocks."""
        latest = max((known.seen.attempt for known in self._known.values()), default=0)
        here = {rank: known for rank, known in self._known.items() if known.seen.attempt == latest}
        return Job(
            run=run, attempt=latest, now_ns=self._newest_ns + int((time.monotonic() - self._newest_s) * 1e9),
            ranks=tuple(self._known), whereabouts={rank: known.seen for rank, known in here.items()},
            liveness={rank: known.life for rank, known in here.items()}, places=places,
        )  # fmt: skip

    @property
    def life(self) -> Liveness:
        """Whether the program lives: as long as one rank does."""
        found = {known.life for known in self._known.values()}
        for life in _LIVELIEST_FIRST:
            if life in found:
                return life
        return "unknown"

    def seen(self, rank: int) -> Whereabouts | None:
        """Return where a rank was last."""
        return self._known[rank].seen if rank in self._known else None

    def life_of(self, rank: int) -> Liveness:
        """Return whether the process of a rank lives."""
        return self._known[rank].life if rank in self._known else "unknown"

    def said(self, rank: int) -> str:
        """Return what became of a rank that does not go on; empty where it does, or came to its end."""
        end = self._ends.get(rank)
        if end is None or end.seen is None or end.how not in _SHOWN:
            return ""
        what = end.seen.exit.type if end.seen.exit is not None else ""
        when = time.strftime("%H:%M:%S", time.localtime(end.seen.last_ns / 1e9))
        word = "gone" if end.how == "silent" and self._known[rank].life == "gone" else ""
        return f"gone since {when}" if word else _SHOWN[end.how].format(what=what, when=when)

    @property
    def away(self) -> frozenset[int]:
        """The ranks that the latest attempt of an elastic job has no more."""
        latest = max((known.seen.attempt for known in self._known.values()), default=0)
        here = [known.seen for known in self._known.values() if known.seen.attempt == latest]
        size = max((seen.world_size for seen in here), default=0)
        return frozenset(r for r, known in self._known.items() if r >= size and known.seen.attempt < latest)

    def _is_gone(self, finding: Finding) -> bool:
        """Return whether nothing that comes later can change it: the process is gone, and left no word."""
        known = self._known.get(finding.rank)
        return finding.confidence == "proven" and known is not None and known.life == "gone" and known.seen.exit is None

    def _sign(self) -> object:
        first = min(self._known, default=-1)
        phase = self._known[first].seen.phase if first >= 0 else ""
        return {rank: end.how for rank, end in self._ends.items()}, self.life, phase, self.away


def _short(finding: Finding) -> tuple[object, ...]:
    return finding.code, finding.rank, finding.step, finding.title
