"""Two ranks do each other's micro-batches: to the same bits, and training comes out as without it."""

import re
from pathlib import Path

import pytest
from launch import launch

from hypocenter.record.reader import open_run

RANKS = Path(__file__).parent


def bits(ended):
    return sorted(re.findall(r"rank \d bits -?\d+;", ended.stdout))  # ranks may write into the same line


@pytest.mark.night
def test_neighbours_agree_and_training_is_as_without_them(tmp_path):
    plain = launch(RANKS / "sdc_job.py", n=2)
    checked = launch(RANKS / "sdc_job.py", n=2, out=tmp_path / "run", config={"sdc_check": "every=1"})

    assert plain.code == checked.code == 0, checked.stderr
    assert bits(plain) == bits(checked) != []
    assert checked.alarms == []
    assert "switched off" not in checked.stderr
    recorded = open_run(tmp_path / "run")
    rows = [row for rank in recorded.ranks for row in recorded.table(rank).to_pylist() if row["site"] == "sdc"]
    told = [row for row in rows if row["port"] == "neighbour"]
    assert len(told) >= 2
    assert all(row["n"] == row["n_zero"] > 4 for row in told)
    again = [row for row in rows if row["port"] == "again[0]"]
    assert all(row["n"] == row["n_zero"] > 4 for row in again)
