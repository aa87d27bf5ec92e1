"""HC309: gradients that ranks shared, by the norms that each records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from panels_by_hand import grid_of, panel_of

from hypocenter.detect.group_engine import GroupEngine, group_rules
from hypocenter.detect.group_rules.gradients_split import CODE
from hypocenter.detect.panel import JobHistory
from hypocenter.nouns import Finding, Reading, Summary


def found(names: Sequence[str], norm: Callable[[str, int, int], float], n_ranks: int = 4) -> list[Finding]:
    engine, history, all_of = GroupEngine({CODE: group_rules()[CODE]}), JobHistory(), []
    for step in range(10):
        rows = [
            (rank, Reading(step=step, microbatch=0, phase="grad", site=name, port="grad", order=0,
                           summary=Summary(n=8, sumsq=norm(name, step, rank) ** 2)))
            for rank in range(n_ranks) for name in names
        ]  # fmt: skip
        panel = panel_of(rows, grid_of(dp=n_ranks), step=step, history=history)
        all_of += engine.feed(replace(panel, last_steps=dict.fromkeys(range(n_ranks), 9)))
    return all_of


def shared(name: str, step: int, rank: int) -> float:
    return 1.0 + len(name) + 0.1 * step


def test_the_odd_rank_the_parameter_and_the_step_are_named() -> None:
    (finding,) = found(
        ["up", "head"], lambda n, s, r: shared(n, s, r) * (1.5 if (n, r) == ("head", 2) and s >= 5 else 1)
    )

    assert (finding.step, finding.rank, finding.param, finding.severity) == (5, 2, "head", "warning")


def test_the_parameter_that_changed_the_clip_of_all_is_named() -> None:
    def clipped(name: str, step: int, rank: int) -> float:
        is_odd = rank == 1 and step >= 6
        return shared(name, step, rank) * (0.8 if is_odd else 1.0) * (2.0 if is_odd and name == "up" else 1.0)

    (finding,) = found(["embed", "head", "norm", "up"], clipped)

    assert (finding.step, finding.rank, finding.param) == (6, 1, "up")


def test_pairs_that_share_are_compared_with_each_other() -> None:
    def in_pairs(name: str, step: int, rank: int) -> float:
        return shared(name, step, rank) + rank // 2 + (rank == 3 and step == 6)

    (finding,) = found(["up"], in_pairs)

    assert (finding.step, finding.rank) == (6, 2)  # of two nobody can tell which
    assert "rank 0" not in finding.title


@pytest.mark.parametrize(
    "norm",
    [
        shared,
        lambda n, s, r: shared(n, s, r) * (1 + 1e-6 * r * (s >= 5)),  # rounding
        lambda n, s, r: shared(n, s, r) + r,  # each rank its own
        lambda n, s, r: shared(n, s, r) + (r if s >= 2 else 0),  # at the first steps by chance
        lambda n, s, r: 0.0 if s < 7 else shared(n, s, r) + r,  # nothing before
    ],
)
def test_near_misses(norm: Callable[[str, int, int], float]) -> None:
    assert found(["up", "head"], norm) == []
