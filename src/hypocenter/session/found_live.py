"""What `hypocenter check` finds in the recording while training goes on, asked of a process of its own.

The training process has neither the time nor the packages for it. Asked after a step that was not finite, and at the
end; never more often than that the checks take a twentieth of the time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import msgspec

from hypocenter.nouns import Diagnosis, Finding, StepRecord
from hypocenter.record.step_numbers import is_bad

SHARE = 20  # times as long as a check took, before the next one
PATIENCE_S = 20.0  # longest that the end of training waits for the last one


class FoundLive:
    """Asks for findings while training goes on, and tells those that are new.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._told: set[tuple[object, ...]] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._answer: IO[bytes] | None = None
        self._is_wanted = False
        self._began_s, self._next_s = 0.0, 0.0

    def after(self, step: StepRecord | None) -> list[Finding]:
        """Ask after this step was written, if there is a reason to; return the findings that have come since."""
        self._is_wanted |= step is not None and is_bad(step)
        if self._process is None:
            if self._is_wanted and time.monotonic() >= self._next_s:
                self._ask()
            return []
        if self._process.poll() is None:
            return []
        now_s = time.monotonic()
        self._next_s = now_s + SHARE * (now_s - self._began_s)
        return self._taken()

    def rest(self, patience_s: float = PATIENCE_S) -> list[Finding]:
        """Ask once more, wait for the answer and return the new findings.

        Raises:
            TimeoutError: there is no answer in time, or none that can be read.
        """
        self._stop()
        self._ask()
        assert self._process is not None
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired as error:
            self._stop()
            raise TimeoutError(f"hypocenter check took more than {patience_s:g} s") from error
        return self._taken()

    def _ask(self) -> None:
        self._is_wanted, self._began_s = False, time.monotonic()
        self._answer = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has ended
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HYPOCENTER_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hypocenter", "check", str(self._directory), "--format", "json"],
            env=environment, stdin=subprocess.DEVNULL, stdout=self._answer, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def _taken(self) -> list[Finding]:
        answer, self._answer, self._process = self._answer, None, None
        assert answer is not None
        with answer:
            answer.seek(0)
            diagnosis = msgspec.json.decode(answer.read(), type=Diagnosis, strict=False)
        new = [finding for finding in diagnosis.findings if _key(finding) not in self._told]
        self._told |= set(map(_key, new))
        return new

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._answer is not None:
            with contextlib.suppress(OSError):
                self._answer.close()
            self._answer = None


def _key(finding: Finding) -> tuple[object, ...]:
    return finding.code, finding.step, finding.rank, finding.site, finding.param
