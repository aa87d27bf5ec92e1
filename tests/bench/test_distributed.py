"""The benchmark of several ranks: how costs are told, and that a job runs and answers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from installed import skip_without

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.distributed.jobs import Cost, measure
from bench.distributed.sizes import SIZES
from bench.distributed.table import is_over, page

skip_without("transformers")


def cost(world_size: int, *ratios: float, failure: str = "") -> Cost:
    return Cost(
        world_size=world_size, cpu_ratios=ratios, wall_ratios=ratios, plain_ms=300.0, rank_cpu_ms=150.0,
        extra_cpu_ms=2.5, tap_ms=3.0, tap_share=0.01, n_parameters=3_000_000, failure=failure, measured="2026-11-21",
    )  # fmt: skip


def test_the_limit_is_of_four_ranks() -> None:
    assert is_over(cost(4, 1.01, 1.04, 1.05))
    assert not is_over(cost(4, 1.01, 1.02, 1.05))
    assert not is_over(cost(8, 1.2))
    assert is_over(cost(4, failure="died"))


def test_the_page_has_a_row_for_each_number_of_ranks() -> None:
    text = page([cost(2, 1.01), cost(4, 1.06), cost(8, failure="no such port")], SIZES["usual"])

    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert "1.060 (1.06–1.06, 1) **over the limit**" in text
    assert "failed: `no such port`" in text


@pytest.mark.night
def test_a_job_of_two_ranks_is_measured() -> None:
    found = measure(2, "tiny", n_rounds=1, n_pairs=2)

    assert found.failure == ""
    assert len(found.cpu_ratios) == 2
    assert found.tap_ms > 0
    assert found.n_parameters > 0
