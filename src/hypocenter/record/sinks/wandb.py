"""Weights & Biases: numbers, alerts and tables for the program's own run; `wandb=rows` gives each step its own row."""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from hypocenter.nouns import Finding, Reading, StepRecord
from hypocenter.record.aside import Aside
from hypocenter.record.attached import Attached
from hypocenter.record.catalogue import SinkStart, sink
from hypocenter.record.finding_text import heading, markdown
from hypocenter.record.site_table import COLUMNS, SiteTable
from hypocenter.record.step_numbers import Course

PREFIX = "hypocenter/"


@sink("wandb")
class AttachedToWandb(Attached):
    """Attaches to `wandb.run` once there is one.

    By default numbers join the row that the program's own next `log` ends: its steps keep their numbers. A program
    that logs nothing itself asks for `wandb=rows`.
    """

    to_begin = "wandb.init"

    def __init__(self, start: SinkStart) -> None:
        if start.where not in ("", "rows"):
            raise ValueError(f"wandb={start.where}: it is wandb or wandb=rows")
        super().__init__(start)
        self._has_rows, self._ending = start.where == "rows", start.ending

    def attached(self) -> Aside | None:
        """Return what sends to `wandb.run`, in the program's rows or in rows of its own; None without a run."""
        wandb: Any = sys.modules.get("wandb")
        run = getattr(wandb, "run", None)
        if run is None:
            return None
        self._end_before(run)
        return Aside(Wandb(wandb, run, has_rows=self._has_rows))

    def _end_before(self, run: Any) -> None:
        """Have the last numbers sent before the run is finished, by the program or at exit."""
        atexit.register(self._run_ends)  # runs before wandb's own, which was registered earlier
        with contextlib.suppress(Exception):
            from wandb.sdk.wandb_run import TeardownHook, TeardownStage

            run._teardown_hooks.append(TeardownHook(self._run_ends, TeardownStage.EARLY))

    def _run_ends(self) -> None:
        atexit.unregister(self._run_ends)
        if self._aside is None:
            return
        with contextlib.suppress(Exception):  # inside of the program's own `wandb.finish`
            self._ending()
        with contextlib.suppress(Exception):
            self.close()


class Wandb:
    """Sends to W&B from the sink's thread."""

    def __init__(self, wandb: Any, run: Any, *, has_rows: bool) -> None:
        self._wandb, self._run, self._has_rows = wandb, run, has_rows
        self._course, self._sites, self._is_new = Course(), SiteTable(), False
        self._findings: list[Finding] = []
        run.define_metric(f"{PREFIX}step", hidden=True)
        run.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        """Keep the numbers of a step for the next row."""
        self._sites.take(readings)
        if step is not None:
            self._course.take(step)
            self._is_new = True
            if self._has_rows:
                self.flush()

    def finding(self, finding: Finding) -> None:
        """Send an alert, unless it is a note, and keep a line for the table of findings."""
        self._findings.append(finding)
        if finding.severity != "note":
            level = self._wandb.AlertLevel.ERROR if finding.severity == "error" else self._wandb.AlertLevel.WARN
            self._run.alert(title=heading(finding), text=markdown(finding), level=level, wait_duration=0)

    def flush(self) -> None:
        """Put the latest numbers into the row that is not yet ended."""
        if self._is_new:
            self._is_new = False
            self._log({f"{PREFIX}{name}": value for name, value in self._course.numbers().items()})

    def close(self) -> None:
        """Send the tables of sites and of findings."""
        tables: dict[str, Any] = {}
        if rows := self._sites.rows():
            tables[f"{PREFIX}sites"] = self._wandb.Table(columns=list(COLUMNS), data=rows)
        if self._findings:
            data = [[f.severity, f.code, f.step, f.rank, f.site, f.cause, f.title] for f in self._findings]
            columns = ["severity", "code", "step", "rank", "site", "cause", "title"]
            tables[f"{PREFIX}findings"] = self._wandb.Table(columns=columns, data=data)
        if tables:
            self._log(tables)

    def _log(self, values: dict[str, Any]) -> None:
        self._run.log(values, commit=self._has_rows)
