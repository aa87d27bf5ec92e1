"""Two recorded trainings: the first parameter whose update differs, and why; which parameters decay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.updates.compare import compare_updates, decay_sets
from hypocenter.compare.updates.recompute import recompute
from hypocenter.record.reader import RecordedRun, open_run

STEPS = 3
Make = Callable[[nn.Module], torch.optim.Optimizer]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(ids)))


def adamw(**options: Any) -> Make:
    return lambda model: torch.optim.AdamW(model.parameters(), **{"lr": 1e-2, "weight_decay": 0.1, **options})


def without_decay_on_vectors(model: nn.Module) -> torch.optim.Optimizer:
    vectors = [p for p in model.parameters() if p.dim() < 2]
    others = [p for p in model.parameters() if p.dim() > 1]
    groups = [{"params": others, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-2)


def trained(folder: Path, make: Make, level: str = "tensors", noise: float = 0.0, clip: bool = True) -> RecordedRun:
    torch.manual_seed(0)
    model = Net()
    optimizer = make(model)
    with hypocenter.watch(out=str(folder), level=level, schedule="0-1"):
        for _ in range(STEPS):
            loss = nn.functional.cross_entropy(model(torch.arange(8)), torch.arange(1, 9)) * (1 + noise)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    return open_run(folder)


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedRun]:
    return trained(tmp_path_factory.mktemp("baseline") / "run", adamw())


def test_every_step_of_the_schedule_is_done_again_after_clipping(baseline: RecordedRun) -> None:
    rows = {step: recompute(baseline, step) for step in range(STEPS)}

    assert {step: {row.verdict for row in found} for step, found in rows.items()} == {
        0: {"as-stated"}, 1: {"as-stated"}, 2: set(),
    }  # fmt: skip
    names = ["embed.weight", "norm.weight", "norm.bias", "head.weight", "head.bias"]
    assert [row.name for row in rows[1]] == names
    assert all(row.n == row.update.before.raw.size for row in rows[1])


def test_the_same_training_with_other_roundings_is_the_same(tmp_path: Path, baseline: RecordedRun) -> None:
    candidate = trained(tmp_path / "run", adamw(), noise=1e-6)

    found = compare_updates(baseline, candidate)

    assert found.status == "same"
    assert found.sentence == "5 parameters are updated by the same rule with the same options at steps 0, 1"


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"lr": 2e-2}, "lr"),
        ({"betas": (0.9, 0.95)}, "beta2"),
        ({"eps": 1e-5}, "eps"),
        ({"weight_decay": 0.0}, "weight_decay"),
    ],
)
def test_another_option_is_named_although_the_gradients_differ_a_little(
    tmp_path: Path, baseline: RecordedRun, options: dict[str, Any], option: str
) -> None:
    candidate = trained(tmp_path / "run", adamw(**options), noise=1e-6)

    found = compare_updates(baseline, candidate)

    assert found.status == "diverged"
    assert found.first is not None
    assert found.first.baseline == "embed.weight"
    assert found.first.reasons[0].option == option
    assert found.first.reasons[0].confidence == "proven"


def test_an_optimizer_that_does_not_do_what_it_states_is_found_out(tmp_path: Path, baseline: RecordedRun) -> None:
    class Lazy(torch.optim.AdamW):
        """Forgets its decay."""

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                (one, two), eps = group["betas"], group["eps"]
                for p in group["params"]:
                    state = self.state[p]
                    n = int(state.setdefault("step", torch.tensor(0.0)).add_(1))
                    mean = state.setdefault("exp_avg", torch.zeros_like(p)).lerp_(p.grad, 1 - one)
                    square = state.setdefault("exp_avg_sq", torch.zeros_like(p)).mul_(two)
                    square.addcmul_(p.grad, p.grad, value=1 - two)
                    below = (square / (1 - two**n)).sqrt() + eps
                    p.addcdiv_(mean, below, value=-group["lr"] / (1 - one**n))

    candidate = trained(tmp_path / "run", lambda model: Lazy(model.parameters(), lr=1e-2, weight_decay=0.1))

    found = compare_updates(baseline, candidate)

    assert found.first is not None
    reason = found.first.reasons[0]
    assert (reason.option, reason.baseline, reason.candidate) == ("weight_decay", 0.1, 0.0)
    assert "the candidate's Lazy states 0.1, its update shows 0" in reason.text
    assert {"embed.weight", "head.weight", "norm.weight"} <= set(found.decays_only[0])


def test_which_parameters_decay_is_measured_or_stated(tmp_path: Path, baseline: RecordedRun) -> None:
    candidate = trained(tmp_path / "run", without_decay_on_vectors)

    found = compare_updates(baseline, candidate)
    sets = decay_sets(candidate)

    assert found.decays_only == (("head.bias", "norm.bias", "norm.weight"), ())
    assert sets.decayed == {"embed.weight", "head.weight"}
    assert {"embed.weight", "head.weight", "norm.weight"} <= sets.measured
    assert sets.rates["embed.weight"] == 0.1


def test_names_of_the_other_side_come_from_the_matching(tmp_path: Path, baseline: RecordedRun) -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.scale, self.out = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 11)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.scale(self.tokens(ids)))

    torch.manual_seed(0)
    model = Other()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-5)
    with hypocenter.watch(out=str(tmp_path / "run"), level="tensors", schedule="0-1"):
        for _ in range(STEPS):
            nn.functional.cross_entropy(model(torch.arange(8)), torch.arange(1, 9)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    candidate = open_run(tmp_path / "run")

    matching = compare_runs(baseline, candidate).matching
    found = compare_updates(baseline, candidate, matching)

    assert found.first is not None
    assert (found.first.baseline, found.first.candidate) == ("embed.weight", "tokens.weight")
    assert [reason.option for reason in found.first.reasons] == ["eps"]


def test_a_recording_without_tensors_is_no_answer(tmp_path: Path, baseline: RecordedRun) -> None:
    candidate = trained(tmp_path / "run", without_decay_on_vectors, level="sentinel")

    found = compare_updates(baseline, candidate)
    sets = decay_sets(candidate)

    assert found.status == "cannot-tell"
    assert found.sentence == "cannot tell: no optimizer step is recorded in the candidate (level tensors keeps them)"
    assert sets.decayed == {"embed.weight", "head.weight"}
    assert not sets.measured


def test_a_damaged_file_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", adamw())
    path = next((tmp_path / "run").glob("rank-*/tensors/step-000000/update-0.safetensors"))
    path.write_bytes(path.read_bytes()[:100])

    assert recompute(run, 0) == ()
    assert {row.verdict for row in recompute(run, 1)} == {"as-stated"}


def test_diff_blames_an_update_between_two_recorded_steps_not_the_forward_after_it(
    tmp_path: Path, baseline: RecordedRun
) -> None:
    candidate = trained(tmp_path / "run", adamw(eps=1e-5))

    found = compare_runs(baseline, candidate)

    assert found.status == "diverged"
    assert found.first is not None
    assert (found.first.step, found.first.phase, found.first.site) == (0, "optimizer", "embed.weight")
    assert found.cause == "config-mismatch"
    assert found.sentence.startswith("diverged at step 0, optimizer: embed.weight is updated by another rule")


def test_diff_keeps_the_forward_that_differs_under_equal_updates(tmp_path: Path, baseline: RecordedRun) -> None:
    def other_from_the_second_step(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        norm = model.get_submodule("norm")
        optimizer.register_step_post_hook(lambda *_: setattr(norm, "eps", 1e-2))
        return optimizer

    candidate = trained(tmp_path / "run", other_from_the_second_step)

    found = compare_runs(baseline, candidate)

    assert found.first is not None
    assert (found.first.step, found.first.phase, found.first.site) == (1, "forward", "norm")
