"""Every rank of a job is compared with itself, and the first of all to part is named."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from launch import launch
from twice import PROGRAMS, line_of

from hypocenter.compare.repeats.engine import compare_repeats
from hypocenter.twins.bits import recording_bits


@pytest.mark.night
@pytest.mark.parametrize("words", [(), ("broken",)])
def test_ranks_of_fsdp(words: tuple[str, ...], tmp_path: Path) -> None:
    config = asdict(recording_bits(2))
    runs = [tmp_path / name for name in "ab"]
    for run in runs:
        done = launch(PROGRAMS / "two_ranks.py", *words, out=run, config=json.loads(json.dumps(config)))
        assert done.code == 0, done.stderr

    found = compare_repeats(runs)

    assert found.n_ranks == 2
    if not words:
        assert (found.status, found.draws) == ("deterministic", ())
        return
    assert found.first is not None
    assert found.first.source is not None
    assert (found.first.rank, found.first.op, found.first.cause) == (1, "torch.seed", "unseeded-generator")
    assert found.first.source.line == line_of("two_ranks.py", "torch.seed()")
    assert [draw.op for draw in found.draws] == ["aten.bernoulli_.float"]
