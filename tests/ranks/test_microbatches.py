"""Accumulating inside `no_sync`, with an idle expert and checkpointed dropout, is no fault."""

from __future__ import annotations

from pathlib import Path

from launch import launch


def test_accumulation_under_ddp_is_silent(tmp_path: Path) -> None:
    ended = launch(Path(__file__).with_name("microbatch_job.py"), n=2, out=tmp_path / "run")

    assert ended.code == 0, ended.stderr
    assert ended.alarms == []
    assert ended.diagnosis["n_ranks"] == 2
