"""What of a followed run is worth an alert: an error that was found, a step that broke, a program that ended badly."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypocenter.notify.alert import Alert, Kind
from hypocenter.nouns import Diagnosis, Finding
from hypocenter.report import wording
from hypocenter.view.findings import Findings
from hypocenter.view.following import FollowedRun

FINDING_WITHIN_S = 20.0  # a replay finds the cause of a bad step; without one in that time the step itself is told
MOST_FINDINGS = 5  # of one run
_EVERY_S = 1.0


class Told:
    """What has been told of one run: each thing is news once.

    Args:
        is_silent: nothing of it is news, as it was over before anybody looked.
    """

    def __init__(self, run: FollowedRun, findings: Findings, *, is_silent: bool = False) -> None:
        self._run, self._findings, self._is_silent = run, findings, is_silent
        self._said: set[str] = set()

    def news(self) -> list[Alert]:
        """Return alerts that were not given before."""
        found = [] if self._is_silent else list(self._all(self._findings.diagnosis))
        new = [alert for key, alert in found if key not in self._said]
        self._said |= {key for key, _ in found}
        return new

    def _all(self, diagnosis: Diagnosis | None) -> Iterator[tuple[str, Alert]]:
        run = self._run
        errors = [f for f in diagnosis.findings if f.severity == "error"] if diagnosis is not None else []
        for finding in errors[:MOST_FINDINGS]:
            yield f"finding-{finding.step}", self._of(finding)
        bad, since_s = run.first_bad_step, run.bad_since_s
        if bad is not None and since_s is not None and not errors and time.monotonic() - since_s > FINDING_WITHIN_S:
            yield "broke", self._alert("broke", f"loss or gradients are not finite from step {bad} on", step=bad)
        if run.run.status in ("failed", "killed") or run.life == "gone":
            code = f", exit code {run.run.exit_code}" if run.run.exit_code is not None else ""
            last = f" after step {run.course.last_step}" if run.course.last_step >= 0 else ""
            yield "ended", self._alert("ended", f"{run.status}{last}{code}")

    def _of(self, finding: Finding) -> Alert:
        return self._alert(
            "finding", wording.sentence(finding.title), step=finding.step, rank=finding.rank, code=finding.code,
            cause=wording.cause(finding), where=wording.where(finding, max(self._run.n_ranks, 1)),
            fix=wording.remedy(finding.remedy) if finding.remedy is not None else "",
        )  # fmt: skip

    def _alert(self, kind: Kind, title: str, **more: Any) -> Alert:
        directory = str(self._run.directory)
        return Alert(
            kind=kind, run=wording.clean(self._run.run.name or self._run.directory.name), directory=directory,
            host=wording.clean(self._run.run.host or socket.gethostname()), title=title,
            command=wording.command("check", directory), **more,
        )  # fmt: skip


class RunAlerts:
    """Follows one run from a thread of another process than the one that trains; what `hypocenter run --notify` does.

    Args:
        directory: of the run.
        send: takes an alert.
    """

    def __init__(self, directory: Path, send: Callable[[Alert], None]) -> None:
        self._run = FollowedRun(directory)
        self._findings = Findings(self._run)
        self._told = Told(self._run, self._findings)
        self._send, self._is_over = send, threading.Event()
        self._thread = threading.Thread(target=self._go, name="hypocenter-alerts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look a last time: the program has ended, and its diagnosis is written."""
        self._is_over.set()
        self._thread.join(timeout=10)
        self._look()

    def _go(self) -> None:
        while not self._is_over.wait(_EVERY_S):
            self._look()

    def _look(self) -> None:
        try:
            self._run.look()
            self._findings.look(diagnoses=False)
            for alert in self._told.news():
                self._send(alert)
        except Exception:  # a follower that fails is no reason to disturb what is followed
            self._is_over.set()
