"""Sinks prometheus and opentelemetry: a real scrape, and a real export by OTLP over HTTP."""

from __future__ import annotations

import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from ports import free_port
from sink_jobs import N_STEPS, train

from hypocenter.nouns import Finding, StepRecord
from hypocenter.record.catalogue import SinkStart
from hypocenter.record.sinks.opentelemetry import OpenTelemetry, Otlp, opentelemetry
from hypocenter.record.sinks.prometheus import Prometheus, prometheus


@pytest.fixture
def port() -> int:
    return free_port()


def test_prometheus_is_scraped_while_training_goes_on(port: int, tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    texts: list[str] = []

    def scrape(step: int) -> None:
        until = time.monotonic() + 120
        while step == N_STEPS - 1 and time.monotonic() < until:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                texts.append(answer.read().decode())
            if f'hypocenter_n_steps{{rank="0"}} {N_STEPS:.1f}' in texts[-1]:
                return
            time.sleep(0.05)

    assert train(tmp_path / "run", f"prometheus={port}", between=scrape) == train(None)

    samples = {s.name: s.value for family in parser.text_string_to_metric_families(texts[-1]) for s in family.samples}
    assert samples["hypocenter_n_steps"] == N_STEPS
    assert samples["hypocenter_n_bad_steps"] >= 1
    assert samples["hypocenter_lr"] == pytest.approx(1e-2)
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", port), timeout=5):
        pass  # it serves no longer than training


def test_prometheus_counts_findings() -> None:
    pytest.importorskip("prometheus_client")
    served = Prometheus("127.0.0.1", 0, rank=3)
    served.write([], StepRecord(step=7, loss=0.5, loss_scale=1024.0))
    served.finding(Finding(code="HC101", kind="nonfinite", severity="error", title="overflow", step=7))
    served.flush()

    with urllib.request.urlopen(served.url, timeout=10) as answer:
        text = answer.read().decode()
    served.close()

    assert 'hypocenter_loss_scale{rank="3"} 1024.0' in text
    assert 'hypocenter_findings_total{code="HC101",kind="nonfinite",rank="3",severity="error"} 1.0' in text


def test_a_port_that_is_taken_leaves_the_sink_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert train(tmp_path / "run", f"prometheus={taken.getsockname()[1]}") == train(None)

    assert len(re.findall("sink 'prometheus' cannot be opened", capsys.readouterr().err)) == 1


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="prometheus=here: it is PORT or ADDRESS:PORT"):
        prometheus(SinkStart(where="here"))


@pytest.fixture
def collector() -> Iterator[tuple[int, list[bytes]]]:
    bodies: list[bytes] = []

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Takes)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, bodies
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_collector_is_sent_the_numbers_by_otlp(collector: tuple[int, list[bytes]], tmp_path: Path) -> None:
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    from google.protobuf import json_format

    port, bodies = collector
    assert train(tmp_path / "run", f"opentelemetry=http://127.0.0.1:{port}") == train(None)

    sent = json_format.Parse(bodies[-1], service.ExportMetricsServiceRequest())
    metrics = {m.name: m for r in sent.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert metrics["hypocenter.n_steps"].gauge.data_points[0].as_double == N_STEPS
    points = metrics["hypocenter.findings"].sum.data_points
    assert {a.key: a.value.string_value for a in points[0].attributes}["severity"] in ("error", "warning", "note")


def test_a_collector_may_be_away_for_a_while(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Otlp(f"http://127.0.0.1:{port}", rank=0)
    sink.write([], StepRecord(step=0))
    now_s = time.monotonic()
    for later_s in (1, 20, 50, 70):  # the first is before it is time
        monkeypatch.setattr(time, "monotonic", lambda later_s=later_s: now_s + later_s)
        sink.flush()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 90)

    with pytest.raises(OSError, match="refused"):
        sink.flush()


def test_the_programs_own_meter_provider_has_them() -> None:
    metrics = pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    sink = OpenTelemetry(metrics.MeterProvider(metric_readers=[reader], shutdown_on_exit=False), rank=2)
    sink.write([], StepRecord(step=5, grad_norm=3.0))
    sink.flush()

    (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
    values = {metric.name: metric.data.data_points[0] for metric in scope.metrics}
    assert values["hypocenter.grad_norm"].value == 3.0
    assert values["hypocenter.step"].attributes == {"rank": 2}


@pytest.mark.parametrize(
    ("where", "expected"),
    [("", "give an address, opentelemetry=http://HOST:4318"), ("host:1", "it is http://HOST:PORT")],
)
def test_without_a_provider_or_address_it_is_said(where: str, expected: str) -> None:
    pytest.importorskip("opentelemetry.metrics")

    with pytest.raises((LookupError, ValueError), match=expected):
        opentelemetry(SinkStart(where=where))
