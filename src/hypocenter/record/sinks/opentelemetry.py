"""OpenTelemetry: gauges of the program's own meter provider, or sent to `opentelemetry=http://HOST:4318` by OTLP."""

from __future__ import annotations

import json
import math
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypocenter.nouns import Finding, Reading, StepRecord
from hypocenter.record.aside import Aside
from hypocenter.record.catalogue import SinkStart, sink
from hypocenter.record.step_numbers import Course

EXPORT_EVERY_S = 10.0
PATIENCE_S = 60.0  # longest that a collector may be away
_REQUEST_S = 5.0
_CUMULATIVE = 2  # AggregationTemporality of opentelemetry/proto/metrics/v1/metrics.proto


@sink("opentelemetry")
def opentelemetry(start: SinkStart) -> Aside:
    """Take the provider that the program has set up; with an address send to it."""
    if start.where:
        if not start.where.startswith(("http://", "https://")):
            raise ValueError(f"opentelemetry={start.where}: it is http://HOST:PORT")
        return Aside(Otlp(start.where, start.rank))
    from opentelemetry import metrics

    provider = metrics.get_meter_provider()
    if not hasattr(provider, "force_flush"):  # that of the API alone, which sends nothing
        raise LookupError("the program has set up no meter provider: give an address, opentelemetry=http://HOST:4318")
    return Aside(OpenTelemetry(provider, start.rank))


class OpenTelemetry:
    """Sets metrics in the sink's thread; the program's own SDK exports them in one of its own."""

    def __init__(self, provider: Any, rank: int) -> None:
        self._meter, self._rank = provider.get_meter("hypocenter"), rank
        self._gauges: dict[str, Any] = {}
        self._findings = self._meter.create_counter("hypocenter.findings", description="Findings so far.")
        self._course = Course()

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        """Keep the latest numbers."""
        if step is not None:
            self._course.take(step)

    def finding(self, finding: Finding) -> None:
        """Count the finding."""
        self._findings.add(1, {"rank": self._rank, **_named(finding)})

    def flush(self) -> None:
        """Set the gauges to the latest numbers."""
        for name, value in self._course.numbers().items():
            if name not in self._gauges:
                self._gauges[name] = self._meter.create_gauge(f"hypocenter.{name}")
            self._gauges[name].set(value, {"rank": self._rank})

    def close(self) -> None:
        """Do nothing: the provider is the program's to end."""


class Otlp:
    """Sends by OTLP over HTTP, as JSON, from the sink's thread.

    Not by the SDK: its exporter draws from Python's random numbers, which are the program's.

    Args:
        endpoint: of a collector, http://HOST:4318.
    """

    def __init__(self, endpoint: str, rank: int) -> None:
        self._url, self._rank = f"{endpoint.rstrip('/')}/v1/metrics", rank
        self._course, self._findings = Course(), Counter[tuple[tuple[str, str], ...]]()
        self._began_ns, self._sent_s = time.time_ns(), time.monotonic()
        self._away_since_s: float | None = None

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        """Keep the latest numbers."""
        if step is not None:
            self._course.take(step)

    def finding(self, finding: Finding) -> None:
        """Count the finding."""
        self._findings[tuple(_named(finding).items())] += 1

    def flush(self) -> None:
        """Send the numbers when it is time; a collector that is away for long is an error."""
        now_s = time.monotonic()
        if now_s - self._sent_s < EXPORT_EVERY_S:
            return
        self._sent_s = now_s
        try:
            self._send()
            self._away_since_s = None
        except OSError:
            self._away_since_s = now_s if self._away_since_s is None else self._away_since_s
            if now_s - self._away_since_s >= PATIENCE_S:
                raise

    def close(self) -> None:
        """Send the last numbers."""
        self._send()

    def _send(self) -> None:
        body = json.dumps({"resourceMetrics": [{"resource": self._resource(), "scopeMetrics": [self._metrics()]}]})
        request = urllib.request.Request(self._url, body.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_REQUEST_S) as answer:
            answer.read()

    def _resource(self) -> dict[str, Any]:
        return {"attributes": [_attribute("service.name", "hypocenter")]}

    def _metrics(self) -> dict[str, Any]:
        now = str(time.time_ns())
        gauges: list[dict[str, Any]] = [
            {"name": f"hypocenter.{name}", "gauge": {"dataPoints": [self._point(now, (), asDouble=_number(value))]}}
            for name, value in self._course.numbers().items()
        ]
        points = [self._point(now, named, asInt=str(n)) for named, n in self._findings.items()]
        total = {"dataPoints": points, "aggregationTemporality": _CUMULATIVE, "isMonotonic": True}
        counted = [{"name": "hypocenter.findings", "sum": total}] if points else []
        return {"scope": {"name": "hypocenter"}, "metrics": gauges + counted}

    def _point(self, now: str, named: Sequence[tuple[str, str]], **value: Any) -> dict[str, Any]:
        attributes = [{"key": "rank", "value": {"intValue": str(self._rank)}}, *(_attribute(*each) for each in named)]
        return {"attributes": attributes, "startTimeUnixNano": str(self._began_ns), "timeUnixNano": now, **value}


def _named(finding: Finding) -> dict[str, str]:
    return {"code": finding.code, "severity": finding.severity, "kind": finding.kind}


def _attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def _number(value: float) -> float | str:
    """Return a number as the JSON of protocol buffers has it."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
