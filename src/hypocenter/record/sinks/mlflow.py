"""MLflow: metrics, tags and artifacts go to the run that is active in the training thread."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from hypocenter.nouns import Finding, Reading, StepRecord
from hypocenter.record.aside import Aside
from hypocenter.record.attached import Attached
from hypocenter.record.catalogue import sink
from hypocenter.record.finding_text import heading, markdown
from hypocenter.record.site_table import SiteTable
from hypocenter.record.step_numbers import Course, is_bad

PREFIX = "hypocenter"
INTERVAL_S = 10.0  # a point costs a data base some ten milliseconds


@sink("mlflow")
class AttachedToMlflow(Attached):
    """Attaches to `mlflow.active_run()` once there is one."""

    to_begin = "mlflow.start_run"

    def attached(self) -> Aside | None:
        """Return what sends to the active run, which takes everything even after its end; None without one."""
        mlflow: Any = sys.modules.get("mlflow")
        run = mlflow.active_run() if hasattr(mlflow, "active_run") else None  # each thread has its own
        return None if run is None else Aside(Mlflow(mlflow, run.info.run_id), interval_s=INTERVAL_S)


class Mlflow:
    """Sends to MLflow from the sink's thread, through a client of its own."""

    def __init__(self, mlflow: Any, run_id: str) -> None:
        self._metric, self._client, self._run_id = mlflow.entities.Metric, mlflow.MlflowClient(), run_id
        self._course, self._sites = Course(), SiteTable()
        self._pending: dict[int, dict[str, float]] = {}  # by step: the bad ones of this turn, and its last
        self._findings: list[Finding] = []

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        """Keep the numbers of a step: the data base gets a point every ten seconds, and each bad step."""
        self._sites.take(readings)
        if step is not None:
            self._course.take(step)
            if is_bad(step):
                self._keep(step.step)

    def finding(self, finding: Finding) -> None:
        """Set a tag named by the finding's code, and add a section to the page of findings."""
        self._findings.append(finding)
        self._client.set_tag(
            self._run_id, f"{PREFIX}.{finding.code}", f"step {finding.step}: {heading(finding)}"[:5000]
        )
        text = "\n\n".join(map(markdown, self._findings)) + "\n"
        self._client.log_text(self._run_id, text, f"{PREFIX}/findings.md")

    def flush(self) -> None:
        """Send what is kept and the latest step."""
        if self._course.latest is not None:
            self._keep(self._course.latest.step)
            self._course.latest = None
        now_ms = int(time.time() * 1000)
        metrics = [
            self._metric(f"{PREFIX}/{name}", value, now_ms, step)
            for step, numbers in self._pending.items()
            for name, value in numbers.items()
        ]
        self._pending.clear()
        for at in range(0, len(metrics), 1000):  # the most that one request may hold
            self._client.log_batch(self._run_id, metrics=metrics[at : at + 1000])

    def close(self) -> None:
        """Send the table of sites."""
        self._client.log_text(self._run_id, self._sites.csv(), f"{PREFIX}/sites.csv")

    def _keep(self, step: int) -> None:
        self._pending[step] = {name: value for name, value in self._course.numbers().items() if name != "step"}
