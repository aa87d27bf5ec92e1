"""Ranks that are looked at by a real Dask cluster of this machine give the answer that one process gives."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from installed import skip_without

from hypocenter.cli import hypocenter
from hypocenter.nouns import StepRecord
from tests.diagnose.recordings import recording

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

from blocks import page_line

skip_without("distributed")


@pytest.fixture
def scheduler() -> Iterator[str]:
    """The address of a cluster with two workers, threads of this process, on ports that are free."""
    import distributed

    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address.removeprefix("tcp://")


def test_the_line_of_the_page_answers_as_one_process_does(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {rank: [StepRecord(step=step, loss=1.0 - 0.1 * step) for step in range(4)] for rank in range(3)}
    steps[1][2] = StepRecord(step=2, loss=float("nan"))
    recording(tmp_path / "runs" / "job", steps)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(page_line("many-ranks.md", "dask://").replace("scheduler:8786", scheduler))[1:]

    alone, there = (
        CliRunner().invoke(hypocenter, [*given, "--json"], standalone_mode=False)
        for given in (words[: words.index("--on")], words)
    )

    assert [finding["rank"] for finding in json.loads(alone.stdout)["findings"]] == [1]
    assert json.loads(there.stdout) == json.loads(alone.stdout)
    assert there.return_value == alone.return_value == 1


@pytest.mark.night
def test_a_cluster_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    recording(tmp_path / "job", {rank: [StepRecord(step=0, loss=1.0)] for rank in range(2)})

    said = CliRunner().invoke(hypocenter, ["check", str(tmp_path / "job"), "--on", "dask://127.0.0.1:9"])

    assert said.exception is not None
    assert "does not answer" in str(said.exception)
