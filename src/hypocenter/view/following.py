"""A run as it is now: each look takes in what its ranks have written since, and never all of it again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hypocenter.errors import CorruptRecordingError
from hypocenter.nouns import Place, Run, StepRecord
from hypocenter.record.layout import RUN_FILE, rank_directories, rank_directory
from hypocenter.record.node_file import RankNote
from hypocenter.record.place_file import PLACE_FILE, read_place
from hypocenter.record.tail import RankTail
from hypocenter.record.whereabouts import Whereabouts
from hypocenter.record.whole_run import read_run_file
from hypocenter.report.page.curves import MOST_LANES, is_bad
from hypocenter.report.rank_state import RankState
from hypocenter.view.course import Course, RankNow
from hypocenter.view.lives import Lives
from hypocenter.view.nodes import Nodes

MOST_STEPS = 1500  # a curve is about 500 pixels wide
LANES = MOST_LANES  # ranks that have a curve of their own
MOST_DRAWN = 16  # ranks of a large job that have files read for curves, where nodes tell of them
_BEHIND_S = 3.0  # a rank that has not come to where another was so long ago is behind: files are not read all at once


class FollowedRun:
    """A run directory that is followed while it grows.

    Args:
        directory: of the run.
        glance: only the lowest rank, and few steps: for a list of many runs.
        only: ranks; whatever nodes say of them.

    Attributes:
        version: grows with each look that found something new.
    """

    def __init__(self, directory: Path, *, glance: bool = False, only: range | None = None) -> None:
        self.directory, self._glance, self._only = directory, glance, only
        self.run = Run(format=0, name=directory.name)
        self.version, self.problems = 0, list[str]()
        self._run_ns = self._listed_ns = 0
        self.lives, self._nodes = Lives(judges=only is None and not glance), Nodes(directory)
        self._noted: dict[int, RankNote] = {}  # what was taken in of them
        self._drawn: frozenset[int] = frozenset()  # ranks whose steps are read although their nodes tell of them
        self._folders: dict[int, Path] = {}
        self._forget()

    def _forget(self) -> None:
        self.course = Course(120 if self._glance else MOST_STEPS)
        self.lanes: dict[int, Course] = {}
        self.ranks: dict[int, RankNow] = {}
        self.places: dict[int, Place] = {}
        self._tails: dict[int, RankTail] = {}
        self._pace: list[tuple[float, int]] = []  # when which step had been seen of one rank at least
        self._behind: frozenset[int] = frozenset()
        self.bad_since_s: float | None = None  # when a bad step was first seen, monotonic

    @property
    def n_ranks(self) -> int:
        """The number of ranks that have a folder."""
        return len(self._folders)

    @property
    def n_read(self) -> int:
        """The number of ranks that something is known of."""
        return len(self.ranks)

    @property
    def n_drawn(self) -> int:
        """The number of ranks whose steps are read."""
        return len(self._tails)

    @property
    def notes(self) -> Mapping[int, RankNote]:
        """What nodes say of ranks."""
        return self._nodes.notes

    @property
    def folders(self) -> dict[int, Path]:
        """The folders of the ranks that are followed."""
        return dict(self._folders)

    @property
    def seen(self) -> Whereabouts | None:
        """Where the lowest rank is."""
        return self.lives.seen(next(iter(self._folders), 0))

    @property
    def life(self) -> str:
        """Whether the program lives, as far as its processes can be seen from here."""
        return self.lives.life

    @property
    def is_running(self) -> bool:
        """Whether the program still runs, as far as its files and processes tell."""
        return self.run.status == "running" and self.life != "gone"

    @property
    def status(self) -> str:
        """The status in a word or two."""
        if self.run.status == "running" and self.life in ("gone", "stopped"):
            return "ended without a word" if self.life == "gone" else "stopped"
        return self.run.status

    def look(self, told: Callable[[], None] = lambda: None) -> bool:
        """Take in what is new; return whether there was anything.

        Args:
            told: called now and then during a long look, when part of it can be shown.
        """
        is_new = self._look_at_run()
        folders = self._ranks()
        if not self._glance and self._only is None:
            self._nodes.look(is_running=self.run.status == "running")
            self._draw(folders)
        for rank, folder in folders.items():
            if rank in self.notes and rank not in self._drawn:
                is_new |= self._note(rank, self.notes[rank])
                continue
            if rank not in self._tails:
                self._tails[rank] = RankTail(folder)
                self.ranks[rank] = RankNow()
                if self.n_read % 50 == 0:
                    self.version += 1
                    told()
            news = self._tails[rank].look()
            if news.again:
                self._forget()
                return self.look(told)
            if news.listed and not self._glance and (place := _place_of(folder)) is not None:
                self.places[rank] = place
            if news.problem and news.problem not in self.problems and len(self.problems) < 20:
                self.problems.append(news.problem)
                is_new = True
            for record in news.steps:
                self._take(rank, record)
            is_new |= bool(news.steps)
        is_new |= self._look_who_is_behind()
        is_new |= self.lives.look(self.run, folders, self.places, self.notes)
        self.version += is_new
        return is_new

    def moved(self) -> dict[tuple[str, str], list[int]]:
        """Return the ranks that an earlier attempt had on another host, by both hosts."""
        found: dict[tuple[str, str], list[int]] = {}
        for rank, place in sorted(self.places.items()):
            hosts = [*dict.fromkeys(attempt.host for attempt in place.attempts if attempt.host)]
            if len(hosts) > 1:
                found.setdefault((hosts[-2], hosts[-1]), []).append(rank)
        return found

    def records(self) -> list[tuple[int, StepRecord]]:
        """Return the records that curves are drawn from: those of few ranks each, else those of the job as rank 0."""
        if 1 < len(self.lanes) <= LANES and len(self.lanes) == len(self.ranks):
            return [(rank, record) for rank, lane in sorted(self.lanes.items()) for record in lane.records()]
        return [(0, record) for record in self.course.records()]

    def states(self) -> list[RankState]:
        """Return the state of every rank that left a folder."""
        away = self.lives.away
        return [
            RankState(
                rank=rank, coords=self.places[rank].coords if rank in self.places else Place().coords,
                host=self.places[rank].host if rank in self.places else "",
                device=self.places[rank].device if rank in self.places else "", first_bad_step=now.first_bad_step,
                last_step=now.last.step if now.last else None, is_recorded=True, is_lost=bool(self.lives.said(rank)),
                is_behind=rank in self._behind, is_away=rank in away, says=self.lives.said(rank),
            )
            for rank, now in sorted(self.ranks.items())
        ]  # fmt: skip

    @property
    def first_bad_step(self) -> int | None:
        """The first step whose loss or gradient was not finite, except those that a loss scaler skips; or None."""
        return min((now.first_bad_step for now in self.ranks.values() if now.first_bad_step is not None), default=None)

    def _take(self, rank: int, record: StepRecord) -> None:
        now = self.ranks[rank]
        now.n_steps += 1
        if now.last is None or record.step >= now.last.step:
            now.last = record
        if now.first_bad_step is None and is_bad(record):
            now.first_bad_step = record.step
            self.bad_since_s = self.bad_since_s or time.monotonic()
        self.course.add(rank, record)
        if not self._glance and len(self.ranks) <= LANES:
            self.lanes.setdefault(rank, Course(MOST_STEPS // LANES)).add(rank, record)
        elif self.lanes:
            self.lanes.clear()

    def _draw(self, folders: Mapping[int, Path]) -> None:
        """Choose some ranks for curves, of those whose nodes tell of them: with a loss, where one is known."""
        known = {rank: note.last for rank, note in self.notes.items() if rank in folders}
        told = [rank for rank, last in known.items() if last is not None and last.loss is not None]
        if self._drawn and self._drawn <= known.keys() and (not told or not self._drawn.isdisjoint(told)):
            return
        ranks = sorted(told or known)
        self._drawn = frozenset(ranks[:: max(1, -(-len(ranks) // MOST_DRAWN))])

    def _note(self, rank: int, note: RankNote) -> bool:
        """Take in what the node of a rank says of it; return whether that is new."""
        if self._noted.get(rank) is note and rank in self.ranks:
            return False
        self._noted[rank] = note
        self._tails.pop(rank, None)
        now, before = RankNow(last=note.last, first_bad_step=note.first_bad_step), self.ranks.get(rank)
        self.ranks[rank] = now
        if note.place is not None:
            self.places[rank] = note.place
        if now.first_bad_step is not None:
            self.bad_since_s = self.bad_since_s or time.monotonic()
        return before is None or (before.last, before.first_bad_step) != (now.last, now.first_bad_step)

    def _look_who_is_behind(self) -> bool:
        """Compare each rank with the step that another had come to some seconds ago; return whether that changed."""
        now_s, before = time.monotonic(), self._behind
        lasts = {rank: now.last.step for rank, now in self.ranks.items() if now.last is not None}
        self._pace.append((now_s, max(lasts.values(), default=-1)))
        while len(self._pace) > 1 and self._pace[1][0] < now_s - _BEHIND_S:
            del self._pace[0]
        since_s, most = self._pace[0 if self.run.status == "running" else -1]
        is_known = self.run.status != "running" or since_s < now_s - _BEHIND_S
        self._behind = frozenset(rank for rank, last in lasts.items() if is_known and last < most - 1)
        return self._behind != before

    def _look_at_run(self) -> bool:
        try:
            changed_ns = (self.directory / RUN_FILE).stat().st_mtime_ns
        except OSError:
            changed_ns = -1
        if changed_ns == self._run_ns or not _is_own(self.directory / RUN_FILE):
            return False
        self._run_ns = changed_ns
        try:
            self.run, problems = read_run_file(self.directory)
        except CorruptRecordingError as error:
            problems = [f"{error.what}: {error.why}"]
        self.problems = [*dict.fromkeys([*problems, *self.problems])]
        return True

    def _ranks(self) -> dict[int, Path]:
        """Return the folders of ranks, without links: one that leads elsewhere is none of this run."""
        if self._only is not None:
            found = {rank: rank_directory(self.directory, rank) for rank in self._only if rank not in self._folders}
            self._folders |= {rank: folder for rank, folder in found.items() if folder.is_dir()}
            return self._folders
        try:
            changed_ns = self.directory.stat().st_mtime_ns
            if changed_ns != self._listed_ns:
                found = {r: f for r, f in rank_directories(self.directory).items() if not f.is_symlink()}
                self._folders = dict(list(found.items())[:1]) if self._glance else found
                self._listed_ns = changed_ns
        except OSError as error:
            self.problems = [f"{self.directory.name} cannot be read: {error.strerror}"]
        return self._folders


def _is_own(path: Path) -> bool:
    """Return whether a file is of this run: no link that leads elsewhere, and no pipe that never ends."""
    return path.is_file() and not path.is_symlink()


def _place_of(folder: Path) -> Place | None:
    return read_place(folder) if _is_own(folder / PLACE_FILE) else None
