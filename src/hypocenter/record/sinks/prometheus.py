"""Prometheus: an endpoint to scrape at `prometheus=[ADDRESS:]PORT`; 127.0.0.1:9464 if not given, plus the rank here."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hypocenter.nouns import Finding, Reading, StepRecord
from hypocenter.record.aside import Aside
from hypocenter.record.catalogue import SinkStart, sink
from hypocenter.record.step_numbers import Course

ADDRESS, PORT = "127.0.0.1", 9464  # of exporters of OpenTelemetry and the like; several ranks count on from it
_COUNTS = ("n_steps", "n_bad_steps", "n_skipped_steps")


@sink("prometheus")
def prometheus(start: SinkStart) -> Aside:
    """Serve. The numbers are those of a second ago at most; nothing but a scrape reads them."""
    address, _, port = start.where.rpartition(":")
    if port and not port.isdecimal():
        raise ValueError(f"prometheus={start.where}: it is PORT or ADDRESS:PORT")
    on_this_machine = int(os.environ.get("LOCAL_RANK") or 0)
    return Aside(
        Prometheus(address or ADDRESS, int(port or PORT) + (on_this_machine if port != "0" else 0), start.rank)
    )


class Prometheus:
    """Metrics in a registry of its own, and a server in a daemon thread.

    Attributes:
        url: what to scrape.
    """

    def __init__(self, address: str, port: int, rank: int) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

        self._registry, self._gauge, self._rank = CollectorRegistry(), Gauge, str(rank)
        self._gauges: dict[str, Gauge] = {}
        self._findings = Counter(
            "hypocenter_findings", "Findings so far.", ["rank", "code", "severity", "kind"], registry=self._registry
        )
        self._course = Course()
        self._server, self._thread = start_http_server(port, address, self._registry)
        self.url = f"http://{address}:{self._server.server_port}/metrics"

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        """Keep the latest numbers."""
        if step is not None:
            self._course.take(step)

    def finding(self, finding: Finding) -> None:
        """Count the finding."""
        self._findings.labels(self._rank, finding.code, finding.severity, finding.kind).inc()

    def flush(self) -> None:
        """Show the latest numbers to the next scrape."""
        for name, value in self._course.numbers().items():
            if name not in self._gauges:
                about = f"{name} of the latest step" if name not in _COUNTS else f"{name.removeprefix('n_')} so far"
                self._gauges[name] = self._gauge(f"hypocenter_{name}", about, ["rank"], registry=self._registry)
            self._gauges[name].labels(self._rank).set(value)

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
