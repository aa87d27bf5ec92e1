"""Sink mlflow: a real local store, the run that the program has started, read back with MLflow's client."""

from __future__ import annotations

import contextlib
import csv
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from installed import skip_without
from sink_jobs import BAD_STEP, N_STEPS, train

from hypocenter.record.catalogue import SinkStart
from hypocenter.record.sinks.mlflow import AttachedToMlflow

skip_without("mlflow", "sqlalchemy", "alembic")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store: to make its tables takes seconds."""
    import mlflow

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def active(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import mlflow

    monkeypatch.chdir(tmp_path)
    before = mlflow.get_tracking_uri()
    shutil.copy(store, tmp_path / "mlflow.db")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = mlflow.create_experiment("e", artifact_location=(tmp_path / "artifacts").as_uri())
    yield mlflow.start_run(experiment_id=experiment)
    with contextlib.suppress(mlflow.exceptions.MlflowException):  # of a store that a test has lost
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


def test_the_active_run_has_metrics_findings_and_sites(active: Any, tmp_path: Path) -> None:
    import mlflow

    train(tmp_path / "run", "mlflow", between=lambda step: mlflow.log_metric("mine", step, step=step))

    client, run_id = mlflow.MlflowClient(), active.info.run_id
    assert [m.step for m in client.get_metric_history(run_id, "mine")] == list(range(N_STEPS))
    history = {m.step: m.value for m in client.get_metric_history(run_id, "hypocenter/n_bad_grads")}
    assert history[BAD_STEP] == 4  # each bad step, whatever else is left out
    assert client.get_metric_history(run_id, "hypocenter/n_steps")[-1].value == N_STEPS
    tags = {name: text for name, text in client.get_run(run_id).data.tags.items() if name.startswith("hypocenter.")}
    assert any(text.startswith(f"step {BAD_STEP}: error[HC1") for text in tags.values())
    assert "bad-input" in mlflow.artifacts.load_text(f"runs:/{run_id}/hypocenter/findings.md")
    sites = csv.DictReader(io.StringIO(mlflow.artifacts.load_text(f"runs:/{run_id}/hypocenter/sites.csv")))
    bad = {row["site"]: row["n_bad"] for row in sites if row["phase"] == "grad"}
    assert bad["0.weight"] != "0"
    assert mlflow.active_run().info.run_id == run_id  # the run is the program's to end


def test_a_store_that_goes_away_is_said_once_and_changes_nothing(
    active: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose(step: int) -> None:
        if step == 2:
            (tmp_path / "mlflow.db").write_bytes(b"no data base any more" * 1000)

    plain = train(None)
    watched = train(tmp_path / "run", "mlflow", between=lose)

    assert watched == plain
    said = [line for line in capsys.readouterr().err.splitlines() if "sink 'mlflow'" in line]
    assert len(said) == 1
    assert "failed and is switched off" in said[0]


def test_without_a_run_it_is_said_by_rank_0_alone() -> None:
    AttachedToMlflow(SinkStart(rank=1)).close()

    with pytest.raises(LookupError, match=r"the program has started no run: call mlflow\.start_run before training"):
        AttachedToMlflow(SinkStart(rank=0)).close()
