"""What was loaded and is written over, what is frozen and moves, norms that measure nothing, one order of the data."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset, get_worker_info

import hypocenter
from hypocenter.tap.loader_batches import alike_in_workers
from tests.session.observers.test_laws import findings

Act = Callable[[nn.Sequential, int], None]


def net(*, momentum: float | None = 0.1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 8), nn.Linear(8, 1))


def told(
    out: Path, *, before: Act = lambda model, step: None, after: Act = lambda model, step: None,
    model: Callable[[], nn.Sequential] = net, is_none: bool = True, n_steps: int = 20,
) -> list[tuple[str, str]]:  # fmt: skip
    torch.manual_seed(0)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        trained = model()
        optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2, weight_decay=0.1)
        for step in range(n_steps):
            before(trained, step)
            optimizer.zero_grad(set_to_none=is_none)
            trained(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            after(trained, step)
    return [(each.code, each.severity) for each in findings(out) if each.severity != "note"]


def begin(*, then: Callable[[nn.Module], None]) -> Callable[[], nn.Sequential]:
    def made() -> nn.Sequential:
        model, other = net(), net()
        model.load_state_dict(other.state_dict())
        model.apply(then)
        return model

    return made


def anew(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.1)


def the_head_anew(module: nn.Module) -> None:
    if isinstance(module, nn.Linear) and module.out_features == 1:
        nn.init.normal_(module.weight, std=0.1)


def halved(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.weight.data.mul_(0.5)


def with_noise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.weight.data.add_(0.1 * torch.randn_like(module.weight))


def test_what_was_loaded_and_is_made_anew_is_told(tmp_path: Path) -> None:
    assert told(tmp_path, model=begin(then=anew)) == [("HC255", "warning")]


@pytest.mark.slow
@pytest.mark.parametrize("then", [lambda _: None, the_head_anew, halved, with_noise])
def test_what_is_left_of_it_or_a_part_made_anew_is_not(then: Callable[[nn.Module], None], tmp_path: Path) -> None:
    assert told(tmp_path, model=begin(then=then)) == []


def loaded_in_two_parts() -> nn.Sequential:
    model = net()
    model.load_state_dict(net().state_dict())
    for part in model:
        part.load_state_dict(type(part)(*ARGUMENTS[type(part)](part)).state_dict())
    return model


ARGUMENTS = {
    nn.Linear: lambda part: (part.in_features, part.out_features), nn.BatchNorm1d: lambda part: (part.num_features,),
}  # fmt: skip


def test_what_another_load_writes_over_is_not(tmp_path: Path) -> None:
    assert told(tmp_path, model=loaded_in_two_parts) == []


def kept(how: Callable[[nn.Module], Any], *, at: int = 6) -> Act:
    """Keep its state at a step, and load it again at the last but one."""
    held: list[Any] = []

    def act(model: nn.Sequential, step: int) -> None:
        if step == at:
            held.append(how(model))
        if step == 18:
            model.load_state_dict(held[0])

    return act


def copied_later(model: nn.Module) -> Any:
    state = model.state_dict()
    for name, value in state.items():
        state[name] = value.clone()
    return state


def test_a_state_that_is_no_copy_brings_nothing_back(tmp_path: Path) -> None:
    assert told(tmp_path, after=kept(lambda model: model.state_dict())) == [("HC255", "warning")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "after",
    [
        kept(lambda model: copy.deepcopy(model.state_dict())), kept(copied_later),
        kept(lambda model: model.state_dict(), at=18), kept(lambda _: net().state_dict()),
    ],
    ids=["deep", "later", "now", "another"],
)  # fmt: skip
def test_a_copy_of_it_or_that_of_another_model_is_loaded(after: Act, tmp_path: Path) -> None:
    assert told(tmp_path, after=after) == []


def test_a_copy_that_follows_may_be_given_one_state_again_and_again(tmp_path: Path) -> None:
    held: list[Any] = []

    def act(model: nn.Sequential, step: int) -> None:
        if not held:
            held.extend([model.state_dict(), net()])
        if step % 5 == 4:
            held[1].load_state_dict(held[0])

    assert told(tmp_path, after=act) == []


def freeze(model: nn.Sequential, step: int) -> None:
    if step == 6:
        model[0].requires_grad_(False)


@pytest.mark.slow
@pytest.mark.parametrize(("is_none", "said"), [(False, [("HC262", "warning")]), (True, [])])
def test_what_is_frozen_and_moves_is_told(is_none: bool, said: list[tuple[str, str]], tmp_path: Path) -> None:
    assert told(tmp_path, before=freeze, is_none=is_none) == said


@pytest.mark.slow
@pytest.mark.parametrize(("is_new", "said"), [(False, [("HC262", "warning")]), (True, [])])
def test_what_is_frozen_and_follows_its_old_gradient_is_told(
    is_new: bool, said: list[tuple[str, str]], tmp_path: Path
) -> None:
    """One that the program makes anew for each update is a way of training."""
    old: list[Tensor] = []

    def before(model: nn.Sequential, step: int) -> None:
        weight = model[0].weight
        if step == 8 and isinstance(weight, Tensor) and weight.grad is not None:
            weight.requires_grad_(False)
            old.append(weight.grad)

    def give_back(model: nn.Module, args: object) -> None:  # after zero_grad
        if old and isinstance(model, nn.Linear):
            model.weight.grad = torch.randn_like(old[0]) if is_new else old[0]

    def made() -> nn.Sequential:
        model = net()
        model[0].register_forward_pre_hook(give_back)
        return model

    assert told(tmp_path, before=before, model=made) == said


def always_frozen() -> nn.Sequential:
    model = net()
    model[0].requires_grad_(False)
    return model


def test_what_was_never_trained_is_not(tmp_path: Path) -> None:
    assert told(tmp_path, model=always_frozen, is_none=False) == []


def averaged(*, buffers: bool) -> tuple[Callable[[], nn.Sequential], Act]:
    kept: list[nn.Sequential] = []

    def made() -> nn.Sequential:
        model = net()
        kept.append(copy.deepcopy(model).eval().requires_grad_(False))
        return model

    def after(model: nn.Sequential, step: int) -> None:
        with torch.no_grad():
            for mine, weight in zip(kept[0].parameters(), model.parameters(), strict=True):
                mine.lerp_(weight, 0.1)
            for mine, weight in zip(kept[0].buffers(), model.buffers(), strict=True) if buffers else ():
                mine.copy_(weight)
            kept[0](torch.ones(2, 6))

    return made, after


@pytest.mark.slow
@pytest.mark.parametrize(("buffers", "said"), [(False, [("HC263", "warning")]), (True, [])])
def test_an_average_without_buffers_is_told(buffers: bool, said: list[tuple[str, str]], tmp_path: Path) -> None:
    made, after = averaged(buffers=buffers)

    assert told(tmp_path, model=made, after=after) == said


@pytest.mark.slow
@pytest.mark.parametrize(("momentum", "said"), [(0.0, [("HC263", "warning")]), (0.01, []), (None, [])])
def test_a_norm_that_measures_nothing_is_told(
    momentum: float | None, said: list[tuple[str, str]], tmp_path: Path
) -> None:
    assert told(tmp_path, model=lambda: net(momentum=momentum)) == said


def pretrained() -> nn.Sequential:
    model = net()
    model(torch.randn(64, 6))
    model[1].momentum = 0.0
    return model


def frozen_from_the_start() -> nn.Sequential:
    model = net()
    model[1].eval().requires_grad_(False)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("model", [pretrained, frozen_from_the_start])
def test_a_norm_that_keeps_what_it_has_measured_or_is_as_it_was_made_is_not(
    model: Callable[[], nn.Sequential], tmp_path: Path
) -> None:
    assert told(tmp_path, model=model) == []


def passes(data: TensorDataset, kind: str) -> Iterator[tuple[Tensor, ...]]:
    generator, kept = torch.Generator(), DistributedSampler(data, num_replicas=1, rank=0)
    for epoch in range(4):
        if kind == "seeded anew":
            generator.manual_seed(0)
        if kind == "with epochs":
            kept.set_epoch(epoch)
        if kind.startswith("with"):
            yield from DataLoader(data, 4, sampler=kept, drop_last=True)
        else:
            yield from DataLoader(data, 4, shuffle=kind != "in order", generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("seeded anew", ["HC239"]),
        ("without epochs", ["HC239"]),
        ("shuffled", []),
        ("with epochs", []),
        ("in order", []),
    ],
)
def test_one_order_of_shuffled_data_is_told(kind: str, said: list[str], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, data = nn.Linear(6, 1), TensorDataset(torch.randn(16, 6))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for (x,) in passes(data, kind):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    assert [each.code for each in findings(tmp_path) if each.severity != "note"] == said


def test_models_that_are_trained_one_after_another_may_see_one_order(tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(16, 6))
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for lr in (0.01, 0.02, 0.03, 0.04):
            torch.manual_seed(0)
            model = nn.Linear(6, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr)
            for (x,) in DataLoader(data, 4, shuffle=True):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

    assert [each.code for each in findings(tmp_path) if each.severity != "note"] == []


class Noisy(Dataset[Tensor]):
    """Each sample gets noise of a generator of its own."""

    def __init__(self, *, is_own: bool) -> None:
        self.rng = np.random.default_rng(0) if is_own else None
        self.data = torch.from_numpy((self.rng or np.random.default_rng(1)).standard_normal((16, 6))).float()

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        return self.data[index] + torch.from_numpy((self.rng or np.random).standard_normal(6)).float()


class Plain(Noisy):
    """The generator has made the data, and no more."""

    def __getitem__(self, index: int) -> Tensor:
        return self.data[index] + torch.randn(6)


class Seeded(Noisy):
    """The same noise for a sample, whoever draws it."""

    def __init__(self) -> None:
        super().__init__(is_own=False)
        self.generator = torch.Generator()

    def __getitem__(self, index: int) -> Tensor:
        return self.data[index] + torch.randn(6, generator=self.generator.manual_seed(index))


class Sharded(Noisy):
    """Workers have to agree on an order, of which each takes its part."""

    def __getitem__(self, index: int) -> Tensor:
        return self.data[self.rng.permutation(16)[self.part() + index]] if self.rng is not None else self.data[index]

    def part(self) -> int:
        info = get_worker_info()
        return 0 if info is None else info.id


def alike(worker: int) -> None:
    np.random.seed(0)


def apart(worker: int) -> None:
    np.random.seed(worker)


def by_torch(_: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)


@pytest.mark.parametrize(
    ("data", "init", "n_workers", "said"),
    [
        (Noisy(is_own=True), None, 2, "Noisy.rng"),
        (Subset(Noisy(is_own=True), range(8)), None, 2, "Noisy.rng"),
        (Noisy(is_own=False), alike, 2, "worker_init_fn"),
        (Noisy(is_own=True), None, 1, ""),
        (Noisy(is_own=True), apart, 2, ""),
        (Noisy(is_own=False), by_torch, 2, ""),
        (Noisy(is_own=False), None, 2, ""),
        (Plain(is_own=True), None, 2, ""),
        (Seeded(), None, 2, ""),
        (Sharded(is_own=True), None, 2, ""),
    ],
)
def test_what_all_workers_draw_alike(
    data: Dataset[Tensor], init: Callable[[int], None] | None, n_workers: int, said: str
) -> None:
    assert alike_in_workers(OfLoader(data, n_workers, init)) == said


class OfLoader:
    """What an iterator of a DataLoader knows; no worker is started."""

    def __init__(self, data: Dataset[Tensor], n_workers: int, init: Callable[[int], None] | None) -> None:
        self._dataset, self._num_workers, self._worker_init_fn = data, n_workers, init


def test_it_is_told_of_a_loader_that_trains(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, loader = nn.Linear(6, 1), DataLoader(Noisy(is_own=True), 8, num_workers=2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for x in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    assert [each.code for each in findings(tmp_path) if each.severity != "note"] == ["HC239"]
