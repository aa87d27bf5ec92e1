"""OpenTelemetry: gauges of the program's own meter provider, or sent to `opentelemetry=http://HOST:4318` by OTLP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypocenter.nouns import Finding, Reading, StepRecord
from hypocenter.record.aside import Aside
from hypocenter.record.catalogue import SinkStart, sink
from hypocenter.record.step_numbers import Course

EXPORT_EVERY_MS = 10_000
END_WITHIN_MS = 5_000


@sink("opentelemetry")
def opentelemetry(start: SinkStart) -> Aside:
    """Take the provider that the program has set up; with an address make one of our own, which nobody else sees."""
    if start.where:
        return Aside(OpenTelemetry(*_own_provider(start.where), start.rank))
    from opentelemetry import metrics

    provider = metrics.get_meter_provider()
    if not hasattr(provider, "force_flush"):  # that of the API alone, which sends nothing
        raise LookupError("the program has set up no meter provider: give an address, opentelemetry=http://HOST:4318")
    return Aside(OpenTelemetry(provider, lambda: None, start.rank))


def _own_provider(endpoint: str) -> tuple[Any, Callable[[], None]]:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    exporter = OTLPMetricExporter(endpoint=f"{endpoint.rstrip('/')}/v1/metrics")
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=EXPORT_EVERY_MS)
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    return provider, lambda: provider.shutdown(timeout_millis=END_WITHIN_MS)


class OpenTelemetry:
    """Works in the sink's thread; the SDK exports in one of its own."""

    def __init__(self, provider: Any, end: Callable[[], None], rank: int) -> None:
        self._meter, self._end, self._rank = provider.get_meter("hypocenter"), end, rank
        self._gauges: dict[str, Any] = {}
        self._findings = self._meter.create_counter("hypocenter.findings", description="Findings so far.")
        self._course = Course()

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        """Keep the latest numbers."""
        if step is not None:
            self._course.take(step)

    def finding(self, finding: Finding) -> None:
        """Count it."""
        attributes = {"rank": self._rank, "code": finding.code, "severity": finding.severity, "kind": finding.kind}
        self._findings.add(1, attributes)

    def flush(self) -> None:
        """Set the gauges."""
        for name, value in self._course.numbers().items():
            if name not in self._gauges:
                self._gauges[name] = self._meter.create_gauge(f"hypocenter.{name}")
            self._gauges[name].set(value, {"rank": self._rank})

    def close(self) -> None:
        """End what is our own."""
        self._end()
