"""The arithmetic of the benchmark, on made-up steps: the timing itself is not tested."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _bench_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def _answer(cpu_s: float, loss: str = "0x1p+0", weights: int = 7) -> dict[str, object]:
    return {"cpu_s": cpu_s, "losses": [loss], "weights": weights, "peak_mib": 100 * cpu_s}


def test_cost_is_the_median_of_the_paired_ratios() -> None:
    from bench.overhead.pairs import _cost

    pairs = [(_answer(1.0), _answer(1.1)), (_answer(2.0), _answer(2.4)), (_answer(1.0), _answer(9.0))]

    cost = _cost(pairs, n_parameters=7, complaint="")

    assert cost.median == pytest.approx(1.2)
    assert (min(cost.ratios), max(cost.ratios)) == (pytest.approx(1.1), pytest.approx(9.0))


def test_a_tool_that_complained_has_failed() -> None:
    from bench.overhead.pairs import _cost

    assert _cost([(_answer(1.0), _answer(1.0))], 1, "hypocenter: switched off").failure == "hypocenter: switched off"


def test_one_bit_of_difference_in_any_loss_or_weight_is_seen() -> None:
    from bench.overhead.pairs import _same_bits

    same = (_answer(1.0), _answer(1.0))

    assert _same_bits([same] * 3)
    assert not _same_bits([same, (_answer(1.0, "0x1.0p+0"), _answer(1.0, "0x1.0000000000001p+0"))])
    assert not _same_bits([same, (_answer(1.0), _answer(1.0, weights=8))])


def test_rounds_are_pooled_and_one_failure_is_the_answer() -> None:
    from bench.overhead.pairs import Cost, _pooled

    rounds = [Cost(ratios=(1.0, 2.0), plain_ms=10), Cost(ratios=(3.0,), plain_ms=30)]

    assert _pooled(rounds).ratios == (1.0, 2.0, 3.0)
    assert _pooled(rounds).plain_ms == 20
    assert _pooled([*rounds, Cost(failure="boom")]).failure == "boom"


def test_a_trainer_attaches_its_tool_and_takes_it_off_again(tmp_path: Path) -> None:
    from contextlib import contextmanager

    from bench.overhead.tools import Tool
    from bench.overhead.worker import N_TIMED, N_WARM_UP, Trainer

    taken: list[str] = []

    class Work:
        def step(self) -> float:
            taken.append("plain")
            return 1.0

    @contextmanager
    def attach(workload, folder):
        yield lambda: taken.append("tool") or 2.0

    trainer = Trainer(Work(), Tool(title="", attach=attach), tmp_path)

    blocks = [trainer.block("plain"), trainer.block("tool"), trainer.block("tool"), trainer.block("plain")]

    n = N_WARM_UP + N_TIMED
    assert taken == ["plain"] * n + ["tool"] * (n + N_TIMED) + ["plain"] * n
    assert [block["losses"][0] for block in blocks] == [(1.0).hex(), (2.0).hex(), (2.0).hex(), (1.0).hex()]


def test_a_tool_may_take_turns_with_another_than_plain_training(tmp_path: Path) -> None:
    from contextlib import contextmanager

    from bench.overhead.tools import Tool
    from bench.overhead.worker import Trainer

    class Work:
        step = staticmethod(lambda: 1.0)

    @contextmanager
    def attach(workload, folder):
        yield lambda: 2.0

    @contextmanager
    def baseline(workload, folder):
        yield lambda: 3.0

    trainer = Trainer(Work(), Tool(title="", attach=attach, baseline=baseline), tmp_path)

    assert [trainer.block(side)["losses"][0] for side in ("plain", "tool")] == [(3.0).hex(), (2.0).hex()]


def test_the_diary_is_left_out_of_its_baseline_and_comes_back(tmp_path: Path) -> None:
    import torch

    from bench.overhead.tools import TOOLS
    from bench.overhead.workloads import Workload
    from hypocenter.session import observers
    from hypocenter.session.observers.diary import Diary
    from hypocenter.session.start import _current

    model = torch.nn.Linear(2, 2)
    workload = Workload(model=model, optimizer=torch.optim.SGD(model.parameters()), step=lambda: 0.0)
    baseline = TOOLS["diary"].baseline
    assert baseline is not None

    with baseline(workload, tmp_path):
        kinds = [type(observer) for observer in _current[-1].parts.observers._all]

    assert Diary not in kinds
    assert Diary in observers.OBSERVERS


def test_workloads_with_a_loss_scaler_have_a_table_of_their_own() -> None:
    from bench.overhead.pairs import Cost
    from bench.overhead.table import page

    cost = Cost(ratios=(1.01,), has_same_bits=True)
    text = page({"t5-fp32": {"plain": cost}, "t5-fp16": {"plain": cost, "diary": cost}})

    above, _, below = text.partition("## Under a loss scaler")
    assert "t5-fp32" in above
    assert "t5-fp16" not in above
    assert "loss-scale diary" in below
    assert "t5-fp32" not in below


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

    text = page({"t5-fp32": {"sentinel": Cost(ratios=(1.5,), has_same_bits=True), "duo": Cost(failure="boom")}})

    assert "1.50 (1.50–1.50, 1) **over budget**" in text
    assert "failed: `boom`" in text


@pytest.mark.night
def test_a_worker_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    from bench.overhead.pairs import WorkerDied, worker

    with (
        pytest.raises(WorkerDied, match="KeyError: 'nonsense'"),
        worker(sys.executable, "t5-fp32", "nonsense", tmp_path / "w"),
    ):
        pass


@pytest.mark.night
def test_only_the_cells_of_this_machine_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.overhead import measured
    from bench.overhead.pairs import Cost

    monkeypatch.setattr(measured, "FILE", tmp_path / "measured.json")
    measured.keep("t5-fp32", "plain", Cost(ratios=(1.0,)))
    measured.keep("t5-fp32", "sentinel", Cost(ratios=(1.01, 1.02)))

    assert measured.kept()["t5-fp32"]["sentinel"] == Cost(ratios=(1.01, 1.02))

    monkeypatch.setattr(measured, "machine", lambda: "another")

    assert measured.kept() == {}
