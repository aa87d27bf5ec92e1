"""The arithmetic of the benchmark, on made-up steps: the timing itself is not tested."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _bench_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def _answer(cpu_s: float, loss: str = "0x1p+0") -> dict[str, object]:
    return {"cpu_s": cpu_s, "wall_s": cpu_s, "loss": loss, "peak_mib": 100 * cpu_s}


def test_cost_leaves_the_warm_up_out_and_takes_the_median() -> None:
    from bench.overhead.pairs import N_WARM_UP, _cost

    warm_up = [(_answer(1.0), _answer(50.0))] * N_WARM_UP
    timed = [(_answer(1.0), _answer(1.1)), (_answer(2.0), _answer(2.4)), (_answer(1.0), _answer(9.0))]

    cost = _cost(warm_up + timed, n_bytes=5 * 2048, n_parameters=7)

    assert cost.median == pytest.approx(1.2)
    assert (min(cost.ratios), max(cost.ratios)) == (pytest.approx(1.1), pytest.approx(9.0))
    assert cost.written_kib == 2
    assert cost.has_same_bits


def test_cost_sees_one_bit_of_difference_in_any_loss() -> None:
    from bench.overhead.pairs import _cost

    pairs = [(_answer(1.0), _answer(1.0))] * 3 + [(_answer(1.0, "0x1.0p+0"), _answer(1.0, "0x1.0000000000001p+0"))]

    assert not _cost(pairs, n_bytes=0, n_parameters=1).has_same_bits


def test_over_budget_names_what_was_too_dear_or_failed_and_never_a_peer() -> None:
    from bench.overhead.pairs import Cost
    from bench.overhead.table import over_budget

    costs = {
        "t5-fp32": {
            "sentinel": Cost(ratios=(1.01, 1.02, 1.03)),
            "modules": Cost(ratios=(1.31, 1.31, 1.2)),
            "ops": Cost(failure="ImportError: no"),
            "duo": Cost(ratios=(9.0,)),
        }
    }

    assert over_budget(costs) == ["modules on t5-fp32: 1.310, budget 1.30", "ops on t5-fp32: ImportError: no"]


def test_page_shows_a_failure_as_a_failure() -> None:
    from bench.overhead.pairs import Cost
    from bench.overhead.table import page

    text = page({"t5-fp32": {"sentinel": Cost(ratios=(1.5,), has_same_bits=True), "duo": Cost(failure="boom")}}, 1, 1)

    assert "1.50 (1.50–1.50) **over budget**" in text
    assert "failed: `boom`" in text


def test_a_worker_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    from bench.overhead.pairs import WorkerDied, worker

    with (
        pytest.raises(WorkerDied, match="KeyError: 'nonsense'"),
        worker(sys.executable, "t5-fp32", "nonsense", tmp_path / "w"),
    ):
        pass
