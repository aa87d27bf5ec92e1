"""One thread that looks at the runs somebody looks at; answers are made once, however many ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hypocenter.notify.alert import Alert
from hypocenter.view.alerts import Told
from hypocenter.view.findings import Findings
from hypocenter.view.following import FollowedRun
from hypocenter.view.runs import Runs
from hypocenter.view.shown import RanksPicture, Shown, shown

EVERY_S = 0.7  # between two looks at a run; a browser asks every second
_WATCHED_S = 30.0  # a run is looked at for so long after somebody asked for it
_KEPT_S = 900.0  # and what is known of it is kept for so long
MOST_KEPT = 12  # runs with all their ranks
_GLANCED_S = 3.0  # between two looks at a run of the list


@dataclass(slots=True)
class Watched:
    """One run that somebody looks at."""

    run: FollowedRun
    findings: Findings
    asked_s: float
    now: Shown | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    is_new: bool = True  # a child has brought something
    told: Told | None = None
    picture: RanksPicture = field(default_factory=RanksPicture)


class Watcher:
    """Follows runs in a thread of its own until `stop`.

    Args:
        runs: that may be seen.
        alert: takes what is to be told of; None where nobody is to be told.
        diagnoses: whether child processes may diagnose.
    """

    def __init__(self, runs: Runs, alert: Callable[[Alert], None] | None = None, *, diagnoses: bool = True) -> None:
        self.runs, self._alert, self._diagnoses = runs, alert, diagnoses
        self._watched: dict[Path, Watched] = {}
        self._glances: dict[Path, tuple[FollowedRun, float]] = {}
        self._lock, self._wake, self._is_over = threading.Lock(), threading.Event(), False
        self._passed: set[Path] = set()  # runs that were looked at for whoever is to be told
        self._glanced_s = 0.0
        self._names: tuple[float, dict[str, Path]] = (-1e9, {})
        self.glances_ready = threading.Event()
        self._thread = threading.Thread(target=self._go, name="hypocenter-view", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after a look that is under way."""
        self._is_over = True
        self._wake.set()
        self._thread.join(timeout=5)

    def names(self) -> dict[str, Path]:
        """Return the runs by name; the folders are listed at most once a second."""
        at_s, found = self._names
        if time.monotonic() - at_s > 1.0:
            found = self.runs.by_name()
            self._names = (time.monotonic(), found)
        return found

    def watch(self, path: Path) -> Watched:
        """Follow a run from now on, as long as it is asked for, and return it."""
        with self._lock:
            watched = self._watched.get(path)
            if watched is None:
                run = FollowedRun(path)
                watched = Watched(run=run, findings=Findings(run), asked_s=time.monotonic())
                watched.findings = Findings(run, changed=lambda: self._changed(watched))
                self._watched[path] = watched
            watched.asked_s = time.monotonic()
        self._wake.set()
        return watched

    def glances(self) -> Sequence[FollowedRun]:
        """Return every run, as a list shows it."""
        self._glanced_s = time.monotonic()
        self._wake.set()
        with self._lock:
            return [self._glances[path][0] for path in self.names().values() if path in self._glances]

    @property
    def n_kept(self) -> int:
        """The number of runs that are followed in full."""
        return len(self._watched)

    def _changed(self, watched: Watched) -> None:
        watched.is_new = True
        self._wake.set()

    def _go(self) -> None:
        while not self._is_over:
            self._wake.clear()
            started = time.monotonic()
            with suppress(Exception):  # what one look meets, the next may not
                self.look()
            rest = EVERY_S - (time.monotonic() - started)
            time.sleep(0.05)  # many asks at once are one look
            if rest > 0 and not self._is_first():
                self._wake_after(rest)

    def _wake_after(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._is_over and time.monotonic() < end and not self._is_first():
            self._wake.wait(min(0.2, max(0.0, end - time.monotonic())))
            self._wake.clear()

    def _is_first(self) -> bool:
        """Return whether somebody waits for a run that was not looked at yet."""
        with self._lock:
            return any(watched.now is None or watched.is_new for watched in self._watched.values())

    def look(self) -> None:
        """Look once at all runs that are followed."""
        with self._lock:
            all_watched = list(self._watched.items())
        now_s = time.monotonic()
        if self._alert is not None:
            self._watch_running({path for path, _ in all_watched})
        for path, watched in all_watched:
            idle_s = now_s - watched.asked_s
            if idle_s > _KEPT_S and not self._is_told_of(watched):
                with self._lock:
                    del self._watched[path]
            elif idle_s < _WATCHED_S or watched.now is None or self._is_told_of(watched):
                self._look_at(watched, diagnoses=self._diagnoses and idle_s < _WATCHED_S)
        self._drop_most()
        if now_s - self._glanced_s < _WATCHED_S:
            self._glance(now_s)

    def _watch_running(self, known: set[Path]) -> None:
        """Follow each run that still goes on, for those who want to be told of it."""
        for path in self.names().values():
            if path not in known and path not in self._passed:
                self._passed.add(path)
                run = FollowedRun(path, glance=True)
                run.look()
                if run.is_running:
                    watched = self.watch(path)
                    self._look_at(watched, diagnoses=False)

    def _is_told_of(self, watched: Watched) -> bool:
        return self._alert is not None and (watched.run.is_running or watched.told is None)

    def _look_at(self, watched: Watched, *, diagnoses: bool) -> None:
        try:
            is_new = watched.run.look(lambda: self._show(watched))
            is_new |= watched.findings.look(diagnoses=diagnoses)
            is_new |= watched.picture.is_due(watched.run, watched.findings)
            if is_new or watched.is_new or watched.now is None:
                watched.is_new = False
                self._show(watched)
            self._tell(watched)
        except Exception as error:  # of one run: the others are shown all the same
            watched.run.problems = [f"{type(error).__name__}: {error}"[:300]]
            watched.is_new = False
            watched.ready.set()

    def _show(self, watched: Watched) -> None:
        watched.now = shown(watched.run, watched.findings, watched.picture)
        watched.ready.set()

    def _tell(self, watched: Watched) -> None:
        if self._alert is None:
            return
        if watched.told is None:  # what was so before anybody looked is no news
            watched.told = Told(watched.run, watched.findings, is_silent=not watched.run.is_running)
            watched.told.news()
            return
        for alert in watched.told.news():
            self._alert(alert)

    def _drop_most(self) -> None:
        """Forget the runs that were asked for longest ago."""
        with self._lock:
            free = [path for path, watched in self._watched.items() if not self._is_told_of(watched)]
            oldest = sorted(free, key=lambda path: self._watched[path].asked_s)
            for path in oldest[: max(0, len(free) - MOST_KEPT)]:
                del self._watched[path]

    def _glance(self, now_s: float) -> None:
        paths = list(self.names().values())
        for path in paths:
            run, at_s = self._glances.get(path, (None, -1e9))
            if run is None:
                run = FollowedRun(path, glance=True)
            elif now_s - at_s < (_GLANCED_S if run.is_running else 5 * _GLANCED_S):
                continue
            run.look()
            with self._lock:
                self._glances[path] = (run, now_s)
        with self._lock:
            self._glances = {path: one for path, one in self._glances.items() if path in set(paths)}
        self.glances_ready.set()
