"""Copies beside parts of layers, which no mark tells apart: real ranks, tensor parallelism by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import launch

JOB = Path(__file__).with_name("tensor_job.py")


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("own-seed", "HC310", "come to other losses of the same batch"),
        ("no-copy", "HC301", "are not reduced over the tensor-parallel ranks"),
        ("norms-apart", "HC301", "gradients of 2 parameters of norms are not added up"),
        ("norms", None, ""),
        ("healthy", None, ""),
    ],
)
def test_what_should_be_a_copy_is_told(fault: str, code: str | None, words: str, tmp_path: Path) -> None:
    ended = launch(JOB, fault, out=tmp_path / "run")

    assert ended.code == 0, ended.stderr
    found = [(f["code"], f["step"]) for f in ended.alarms]
    assert found == ([] if code is None else [(code, 0)])
    assert all(words in f["title"] for f in ended.alarms)
