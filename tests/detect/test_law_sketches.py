"""detect/law_sketches.py: rows of a panel by parameter and rank."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.detect.law_rows import LABELS, MADE, SKETCH, USED
from hypocenter.detect.law_sketches import LawSketches, law_sketches, weights_of_microbatches
from hypocenter.detect.panel import Panel


def test_whole_sketches_are_taken_by_port_parameter_and_rank() -> None:
    whole = [float(n) for n in range(SKETCH)]
    rows = [
        (0, "a", MADE, 1.0, whole), (1, "a", MADE, 2.0, None), (2, "a", MADE, 3.0, whole[:3]),
        (1, "a", USED, 9.0, whole), (0, LABELS, MADE, 1.0, whole), (0, "b", USED, 1.0, [2 * n for n in whole]),
    ]  # fmt: skip
    names = ("rank", "site", "port", "sum", "sketch")
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    table = pa.table(columns | {"op": ["hook", *[""] * 5], "module": [""] * 6, "call": [2, *[0] * 5]})
    table = table.set_column(4, "sketch", pa.array(columns["sketch"], pa.list_(pa.float32())))

    found = law_sketches(Panel(step=0, table=pa.concat_tables([table.slice(0, 2), table.slice(2)])))

    assert {name: (sorted(each.made), sorted(each.used)) for name, each in found.items()} == {
        "a": ([0], [1]), "b": ([], [0]),
    }  # fmt: skip
    assert found["a"].prints == {0: 1.0}
    assert (found["a"].hook, found["b"].hook) == ("hook", "")
    assert (found["a"].group, found["b"].group) == (2, 0)
    np.testing.assert_array_equal(found["b"].used[0], 2 * np.array(whole))


def test_a_panel_without_laws_has_none() -> None:
    names = ("rank", "site", "port", "sum", "op", "module", "call")
    table = pa.table(
        {name: pa.array([], pa.string()) for name in names} | {"sketch": pa.array([], pa.list_(pa.float32()))}
    )

    assert law_sketches(Panel(step=0, table=table)) == {}


def parted(weights: list[float], seed: int) -> dict[str, LawSketches]:
    """Five parameters of very different sizes on three ranks, the micro-batches of which have these weights."""
    numbers = np.random.default_rng(seed)
    found: dict[str, LawSketches] = {}
    for place in range(5):
        parts = {
            at: {rank: 10.0 ** (place - 2) * numbers.normal(size=SKETCH) for rank in range(3)}
            for at in range(len(weights))
        }
        used = sum(weight * sum(parts[at].values()) for at, weight in enumerate(weights))
        found[str(place)] = LawSketches(parts=parts, used=dict.fromkeys(range(3), np.asarray(used)))
    return found


@given(st.lists(st.floats(0.125, 64), min_size=2, max_size=8), st.integers(0, 2**32))
def test_weights_of_micro_batches_are_solved_for(weights: list[float], seed: int) -> None:
    assert weights_of_microbatches(parted(weights, seed)) == pytest.approx(weights, rel=1e-6)


def test_what_is_not_made_of_micro_batches_has_no_weights() -> None:
    given = parted([1.0, 1.0], 0)
    given["3"].used = {rank: used + 0.1 * np.abs(used) for rank, used in given["3"].used.items()}

    assert weights_of_microbatches(given) == []
    assert weights_of_microbatches({"a": LawSketches(used={0: np.ones(SKETCH)})}) == []
    assert weights_of_microbatches({}) == []
