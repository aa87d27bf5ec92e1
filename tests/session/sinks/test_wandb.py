"""Sink wandb: the runs that a program has, offline, read back from the files that W&B would upload."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from installed import skip_without

from hypocenter.compare.curves.collector import Collector
from hypocenter.compare.curves.readers.wandb_offline import _records

skip_without("wandb")

TRAIN = """
import sys, wandb
sys.path.insert(0, sys.argv[1])
from sink_jobs import N_STEPS, train

def begin():
    settings = wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off", silent=True)
    return wandb.init(project="p", mode="offline", dir=sys.argv[2], settings=settings)

first = begin()
plain = train(None)
watched = train(sys.argv[2] + "/one", "wandb", between=lambda step: first.log({"mine": step}))
assert watched == plain, "training has changed"
wandb.finish()
second = begin()
train(sys.argv[2] + "/two", "wandb=rows", between=lambda step: step == N_STEPS - 1 and wandb.finish())
third = begin()  # and nobody finishes it: the end of the program does
from hypocenter.record.catalogue import SinkStart
from hypocenter.record.sinks.wandb import AttachedToWandb
from hypocenter.nouns import StepRecord
AttachedToWandb(SinkStart()).write([], StepRecord(step=41, loss=0.5))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """Of three runs, in the order of their starts, all that W&B would upload."""
    from wandb.proto import wandb_internal_pb2

    folder = tmp_path_factory.mktemp("wandb")
    words = [sys.executable, "-c", TRAIN, str(Path(__file__).parent), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    files = sorted(folder.rglob("run-*.wandb"), key=lambda path: path.stat().st_ctime)
    return [
        [wandb_internal_pb2.Record.FromString(each) for each in _records(file, Collector("", "wandb", counts_from=0))]
        for file in files
    ]


def history(run: list[Any]) -> list[dict[str, Any]]:
    return [
        {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
        for record in run
        if record.WhichOneof("record_type") == "history"
    ]


def test_numbers_join_the_rows_of_the_program(runs: list[list[Any]]) -> None:
    rows = history(runs[0])

    assert [row["mine"] for row in rows if "mine" in row] == list(range(10))
    assert [row["_step"] for row in rows if "mine" in row] == list(range(10))  # its steps keep their numbers
    total = [row for row in rows if "hypocenter/n_steps" in row][-1]
    assert (total["hypocenter/n_steps"], total["hypocenter/n_bad_steps"]) == (10, 1)


def test_findings_are_alerts_and_tables(runs: list[list[Any]]) -> None:
    alerts = [record.alert for record in runs[0] if record.WhichOneof("record_type") == "alert"]
    last = history(runs[0])[-1]

    assert [alert.level for alert in alerts] == ["ERROR"]
    assert "bad-input" in alerts[0].text
    assert last["hypocenter/findings/nrows"] >= 1
    assert last["hypocenter/sites/nrows"] >= 4
    assert last["hypocenter/sites/_type"] == "table-file"


def test_steps_have_rows_of_their_own_where_that_is_asked_for(runs: list[list[Any]]) -> None:
    steps = [row["hypocenter/step"] for row in history(runs[1]) if "hypocenter/tap_ms" in row]

    assert steps == list(range(10))
    assert any(record.WhichOneof("record_type") == "alert" for record in runs[1])  # before `finish` ended


def test_a_run_that_the_end_of_the_program_ends_has_all(runs: list[list[Any]]) -> None:
    assert history(runs[2])[-1]["hypocenter/step"] == 41
