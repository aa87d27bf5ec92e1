"""Real programs that do not repeat themselves: the operator, its line and the cause; and others that do."""

from __future__ import annotations

from pathlib import Path

import pytest
from twice import line_of, twice

PLANTED = {
    "seeded_too_late.py": ("aten.randperm.default", "order = torch.randperm", "unseeded-generator"),
    "dropout.py": ("aten.bernoulli_.float", "hidden = self.drop(hidden)", "unseeded-generator"),
    "scatter_add.py": ("aten.index_put.default", "total.index_put", "unordered-accumulation"),
    "index_add.py": ("aten.index_add.default", ".index_add(0, edges", "unordered-accumulation"),
    "worker_seed.py": ("numpy.random.seed", "np.random.seed()", "unseeded-generator"),
    "unseeded.py": ("aten.uniform_.default", "model = nn.Sequential", "unseeded-generator"),
    "crops.py": ("random.randint", "random.randint", "unseeded-generator"),
    "clock_seed.py": ("torch.manual_seed", "torch.manual_seed", "seed-differs"),
    "clock_rate.py": ("aten.add_.Tensor", "optimizer.step()", "other-path"),
    "unwritten.py": ("aten.addmm.default", "model(padded)", "undefined-memory"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_names_what_does_not_repeat(name: str, tmp_path: Path) -> None:
    op, text, cause = PLANTED[name]

    found = twice(name, tmp_path)

    assert (found.status, found.results.n_differ > 0) == ("differs", True)
    first = found.first
    assert first is not None
    assert first.source is not None
    assert (first.op, first.source.line, first.cause) == (op, line_of(name, text), cause)
    assert first.source.file.endswith(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["seeded.py", "exact_sums.py"])
def test_is_silent_where_nothing_that_differs_reaches_a_result(name: str, tmp_path: Path) -> None:
    found = twice(name, tmp_path)

    assert (found.status, found.first, found.draws) == ("deterministic", None, ())
    assert found.results.n_differ == 0 < found.results.n


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unseeded.py", "dropout.py", "scatter_add.py", "crops.py", "unwritten.py"])
def test_run_deterministic_cures(name: str, tmp_path: Path) -> None:
    found = twice(name, tmp_path, deterministic=True)

    assert found.status == "deterministic", found.sentence


def test_lists_every_line_that_drew_without_a_seed(tmp_path: Path) -> None:
    found = twice("unseeded.py", tmp_path)

    drew = {(draw.op, draw.source.line if draw.source else 0) for draw in found.draws}
    made, looped, noise, called = (
        line_of("unseeded.py", text) for text in ("model = nn", "for batch in", "noise =", "loss =")
    )
    assert drew == {
        ("aten.uniform_.default", made), ("aten.random_.default", looped), ("aten.randperm.generator", looped),
        ("random.gauss", noise), ("numpy.random.rand", noise), ("aten.bernoulli_.float", called),
    }  # fmt: skip


@pytest.mark.night
def test_says_which_worker_and_where_its_draws_went(tmp_path: Path) -> None:
    found = twice("worker_seed.py", tmp_path)

    assert found.first is not None
    assert (found.first.worker, found.first.phase, found.first.confidence) == (0, "data", "likely")
    why = " ".join(found.first.why)
    assert f"worker_seed.py:{line_of('worker_seed.py', 'np.random.normal')}" in why
    assert f"worker_seed.py:{line_of('worker_seed.py', 'loss = model(batch)')}" in why


def test_unusual_tensors_and_modes_are_left_alone(tmp_path: Path) -> None:
    found = twice("unusual.py", tmp_path)

    assert (found.status, found.notes) == ("deterministic", ())
