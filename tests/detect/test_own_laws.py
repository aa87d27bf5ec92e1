"""detect/own_laws.py: of one rank alone it is seen that HC308 has nothing to say."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from panels_by_hand import grid_of, panel_of

from hypocenter.detect.columns import Columns
from hypocenter.detect.group_rules import gradients_unbalanced
from hypocenter.detect.law_rows import LABELS, MADE, SKETCH, USED
from hypocenter.detect.own_laws import OwnLaw
from hypocenter.detect.panel import JobHistory
from hypocenter.nouns import Reading, Summary
from hypocenter.record.schema import READINGS, encoded, readings_batch

SITES = ("a", "b", "c")
Ways = dict[int, tuple[str, ...]]  # by step: of each parameter, how what is used comes from what is made


def rows_of(ways: Ways) -> dict[int, list[Reading]]:
    """Rows of one rank by step: `own`, `twice`, `half`, `other`, `with the one before`, `nothing`."""
    rng, used = np.random.default_rng(0), dict.fromkeys(SITES, np.zeros(SKETCH))
    found: dict[int, list[Reading]] = {}
    for step, of_step in sorted(ways.items()):
        rows = [row(LABELS, MADE, step, ())]
        for site, way in zip(SITES, of_step, strict=True):
            made = rng.standard_normal(SKETCH)
            used[site] = {
                "own": made, "twice": 2 * made, "half": 0.5 * made, "nothing": 0 * made,
                "other": rng.standard_normal(SKETCH), "with the one before": made + used[site],
            }[way]  # fmt: skip
            rows += [row(site, MADE, step, made), row(site, USED, step, used[site])]
        found[step] = rows
    return found


def row(site, port, step, sketch):
    summary = Summary(n=1, sum=1.0, sketch=tuple(sketch))
    return Reading(step=step, microbatch=0, phase="grad", site=site, port=port, order=1, summary=summary)


def told(rows: dict[int, list[Reading]], steps: set[int]) -> list[str]:
    """What HC308 says when it is asked at some of the steps, where ranks are too many for sums."""
    history, places = JobHistory(), grid_of(dp=2)
    panels = [
        panel_of([(rank, each) for rank in (0, 1) for each in rows[step]], places, step=step, history=history)
        for step in sorted(steps)
    ]
    return [f.title for panel in panels for f in gradients_unbalanced.check(panel)]


def is_quiet(rows: dict[int, list[Reading]]) -> bool:
    law = OwnLaw()
    for of_step in rows.values():
        table = pa.Table.from_batches([readings_batch(of_step)]).cast(encoded(READINGS))
        law.add(Columns(table.to_batches()[0]))
    return law.is_quiet


@pytest.fixture(autouse=True)
def _no_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients_unbalanced, "N_RANKS_AT_MOST", 1)


WAYS = st.sampled_from(["own", "own", "own", "twice", "half", "other", "with the one before", "nothing"])


@settings(max_examples=80, deadline=None)
@given(
    ways=st.dictionaries(st.integers(0, 9), st.tuples(WAYS, WAYS, WAYS), min_size=1), some=st.sets(st.integers(0, 9))
)
def test_where_it_is_quiet_the_rule_says_nothing_at_whatever_steps(ways: Ways, some: set[int]) -> None:
    rows = rows_of(ways)
    if is_quiet(rows):
        assert told(rows, set(ways)) == []
        assert told(rows, some & set(ways)) == []


HABIT = dict.fromkeys((1, 2, 4, 8), ("own",) * 3)


@pytest.mark.parametrize(
    "ways",
    [
        HABIT,
        dict.fromkeys((1, 2, 4), ("half",) * 3),
        dict.fromkeys((1, 2, 4, 8, 16), ("own", "own", "other")),  # an expert's neighbour is averaged over ranks
        dict.fromkeys((1, 2, 4, 8), ("other",) * 3),  # replicas: the mean over ranks
    ],
)
def test_healthy_ranks_are_quiet(ways: Ways) -> None:
    rows = rows_of(ways)

    assert is_quiet(rows)
    assert told(rows, set(ways)) == []


@pytest.mark.parametrize(
    "ways",
    [
        HABIT | {16: ("own", "own", "nothing")},
        HABIT | {16: ("twice",) * 3},
        HABIT | {16: ("other",) * 3},
        dict.fromkeys((1, 2, 3, 4), ("with the one before",) * 3),
    ],
)
def test_what_the_rule_tells_is_not_quiet(ways: Ways) -> None:
    rows = rows_of(ways)

    assert told(rows, set(ways))
    assert not is_quiet(rows)


def test_a_rank_without_laws_is_quiet() -> None:
    assert OwnLaw().is_quiet
