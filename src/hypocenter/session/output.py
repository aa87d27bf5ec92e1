"""Where the rows of this process go: the run directory and the sinks, opened at the first rows."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

import msgspec

from hypocenter._version import __version__
from hypocenter.config import Config, bytes_kept
from hypocenter.nouns import Diagnosis, Finding, Reading, StepRecord
from hypocenter.record.all_rows import AllRows
from hypocenter.record.catalogue import Sinks, SinkStart, load_sinks
from hypocenter.record.keeper import Keep
from hypocenter.record.layout import RUN_FILE, rank_directory
from hypocenter.record.norm_rows import NormRows
from hypocenter.record.pandas_left_out import leave_pandas_out
from hypocenter.record.run_file import finish_run, start_run
from hypocenter.record.shipping import Freight, Shipper
from hypocenter.record.step_numbers import is_bad
from hypocenter.record.writer import Writer
from hypocenter.session.claims import claims, release, who_claims
from hypocenter.session.guard import Warnings
from hypocenter.session.last_words import last_error

SHIP_S = 60.0  # longest that the end of the program waits for the rest to be shipped
WHOLE_STEPS = 10_000  # the last ones, at sentinel


class Output:
    """Writes rows and step records. Nothing is written before the first ones: only then is the rank known.

    Args:
        owns_run: whether run.json is ours to write (`watch`) or the launcher's (`hypocenter run`).
        versions: of the framework, which comes first, and of what goes with it.
        imposed: what the program is made to do; read when the first rows come.
    """

    def __init__(
        self,
        config: Config,
        directory: Path,
        rank: Callable[[], tuple[int, int]],
        warn: Warnings,
        *,
        owns_run: bool,
        command: tuple[str, ...],
        versions: Mapping[str, str],
        imposed: Mapping[str, str] | None = None,
    ) -> None:
        self._config, self._directory, self._rank, self._warn = config, directory, rank, warn
        self._owns_run, self._command, self._imposed = owns_run, command, imposed
        self._versions, self._framework = versions, next(iter(versions))
        self._open: tuple[Writer, Sinks] | None = None
        self._found: FoundLive | None = None
        self._is_second = False
        self._ship: Shipper | None = None

    @property
    def is_broken(self) -> bool:
        """Whether the recording of this rank had to be given up."""
        return self._is_second or (self._open is not None and bool(self._open[0].broken))

    def write(self, rows: Sequence[Reading], record: StepRecord | None, norms: NormRows | None = None) -> None:
        """Write one step's rows, norms of many gradients beside them, and its record if the step is complete."""
        if self._open is None:
            self._is_second = not claims(self._directory, self._framework)
            if self._is_second:
                first = who_claims(self._directory)
                self._warn(f"only what trains with {first} is recorded, the first that made a step")
                return
            self._open = self._opened()
        writer, sinks = self._open
        writer.write(rows, record, norms)
        if self._ship is not None:
            self._ship.look()
        if sinks.names:
            sinks.write(AllRows(rows, norms), record)
            self._tell(lambda found: found.after(record))

    def close(self) -> None:
        """Close the files, and finish run.json with what was said here; the launcher adds how a launched run ended."""
        release(self._directory, self._framework)
        if self._open is None:
            return
        writer, sinks = self._open
        writer.close()
        if sinks.ask_at_end:
            self._tell_the_rest()
        sinks.close()
        if self._owns_run:
            failed = isinstance(last_error(), Exception)
            finish_run(self._directory, "failed" if failed else "finished", int(failed), self._warn.lines)
        elif self._warn.lines:
            finish_run(self._directory, "finished", None, self._warn.lines)
        if self._ship is not None:
            self._ship.close(SHIP_S)

    def _opened(self) -> tuple[Writer, Sinks]:
        leave_pandas_out()
        rank, world_size = self._rank()
        versions = {"hypocenter": __version__, **self._versions}
        start_run(self._directory, self._command, asdict(self._config), world_size, versions, self._imposed)
        self._ship = self._shipper(rank)
        writer = Writer(self._directory, rank=rank, warn=self._warn, keep=_keep(self._config, world_size))
        start = SinkStart(rank=rank, world_size=world_size, directory=self._directory, ending=self._tell_the_rest)
        if self._config.sinks and rank == 0:
            self._found = FoundLive(self._directory)
        return writer, load_sinks(self._config.sinks, self._config.plugins, start=start, warn=self._warn)

    def _tell_the_rest(self) -> None:
        """Tell the sinks what is found in all that is written: at the end, or when a sink's tool ends earlier."""
        self._tell(lambda found: found.rest())

    def _tell(self, ask: Callable[[FoundLive], Sequence[Finding]]) -> None:
        """Give the sinks the findings that are new. Findings are those of all ranks, so rank 0 asks."""
        if self._open is None or self._found is None or not self._open[1].names:
            return
        try:
            findings = ask(self._found)
        except Exception as error:
            self._found = None
            self._warn(f"sinks are told no findings from here on ({type(error).__name__}: {error})")
            return
        for finding in findings:
            self._open[1].finding(finding)

    def _shipper(self, rank: int) -> Shipper | None:
        if self._config.ship is None:
            return None
        folder = rank_directory(self._directory, rank)
        also = (RUN_FILE,) if rank == 0 else ()
        freight = Freight(run=self._directory, folder=folder, address=self._config.ship, also=also)
        return Shipper(freight, self._warn)


def _keep(config: Config, n_ranks: int) -> Keep:
    """Return how much is kept of a rank: above level sentinel rows were asked for, and stay while there is room."""
    n_steps = config.keep_steps or (WHOLE_STEPS if config.level == "sentinel" else None)
    return Keep(n_bytes=bytes_kept(config.keep, n_ranks), n_steps=n_steps)


# What `hypocenter check` finds in the recording while training goes on, asked of a process of its own.
#
# The training process has neither the time nor the packages for it. Asked after a step that was not finite, and at the
# end; never more often than that the checks take a twentieth of the time.

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
