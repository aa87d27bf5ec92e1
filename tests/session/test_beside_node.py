"""The process beside a node: started by the first rank of each node of a large job, never by what is no rank."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hypocenter.config import Config
from hypocenter.launcher import on_node
from hypocenter.session import beside_node

LARGE = {"RANK": "8", "WORLD_SIZE": "64", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "x"}


def started(monkeypatch: pytest.MonkeyPatch, *, fails: bool = False, **more: str) -> list[list[str]]:
    commands: list[list[str]] = []

    def popen(command: list[str], **_: Any) -> None:
        if fails:
            raise OSError("no more processes")
        commands.append(command[2:])

    for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_", "HYPOCENTER_"))]:
        monkeypatch.delenv(name)
    for name, value in {**LARGE, **more}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_HYPOCENTER_NODE", "")  # so that it is put back
    monkeypatch.delenv("_HYPOCENTER_NODE")
    monkeypatch.setattr(subprocess, "Popen", popen)
    beside_node.follow_node(Config(), Path("run"), said.append, on_node())
    return commands


said: list[str] = []


def test_the_first_rank_of_a_node_starts_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = started(monkeypatch)
    beside_node.follow_node(
        Config(), Path("run"), said.append, on_node()
    )  # as a compiler would, that this process starts

    assert commands == [["hypocenter.view.node", "run", "8", "8", str(os.getpid())]]


@pytest.mark.parametrize(
    "more",
    [
        {"LOCAL_RANK": "1", "RANK": "9"},
        {"WORLD_SIZE": "56"},  # few enough to be read one by one
        {"LOCAL_WORLD_SIZE": "1"},  # nothing to gather
    ],
)
def test_others_do_not(monkeypatch: pytest.MonkeyPatch, more: dict[str, str]) -> None:
    assert started(monkeypatch, **more) == []


def test_nor_do_workers_of_a_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())

    assert started(monkeypatch) == []


def test_nor_does_a_job_that_is_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, LOCAL_RANK="1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("it was started"))
    beside_node.follow_node(Config(node_files=False), Path("run"), said.append, on_node())


def test_where_there_are_no_more_processes_it_is_said_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    said.clear()

    assert started(monkeypatch, fails=True) == []
    assert said == ["where the ranks of this node are is not written down (OSError: no more processes)"]


def test_the_process_is_small(tmp_path: Path) -> None:
    """Beside 8 ranks that hold the same libraries it takes less than 40 MiB (bench/MEASURED.md)."""
    ask = "import sys; from pathlib import Path; from hypocenter.view.node import Node; "
    ask += f"Node(Path({str(tmp_path)!r}), range(8)).look(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    large = {"torch", "mindspore", "pandas", "starlette", "jinja2", "scipy", "duckdb", "click"}
    ours = {"hypocenter.detect.group_rules", "hypocenter.record.reader"}

    assert not (large | ours) & set(done.stdout.split())
