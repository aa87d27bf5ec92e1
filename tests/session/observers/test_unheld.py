"""What lies in a plain list and what forward makes anew is told; what is left out on purpose is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hypocenter
from tests.session.observers.test_laws import findings


class Net(nn.Module):
    """Three layers and what a test puts between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.scale, self.down = nn.Linear(6, 8), nn.Parameter(torch.ones(8)), nn.Linear(8, 1)

    def middle(self, hidden: Tensor) -> Tensor:
        """Of a subclass."""
        return hidden

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.middle(self.up(x))) * self.scale)


class Listed(Net):
    """Layers in a list."""

    def __init__(self, n: int = 3) -> None:
        super().__init__()
        self.layers: list[nn.Module] = [nn.Linear(8, 8) for _ in range(n)]

    def middle(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return hidden


class Tabled(Net):
    """Parameters in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.shifts = {"a": nn.Parameter(torch.randn(8)), "b": nn.Parameter(torch.randn(8))}

    def middle(self, hidden: Tensor) -> Tensor:
        return hidden + self.shifts["a"] * self.shifts["b"]


class Anew(Net):
    """A parameter that forward makes."""

    def middle(self, hidden: Tensor) -> Tensor:
        self.scale = nn.Parameter(torch.ones(8))
        return hidden


class LayerAnew(Net):
    """A layer that forward makes."""

    def middle(self, hidden: Tensor) -> Tensor:
        self.extra = nn.Linear(8, 8)
        return self.extra(hidden)


class MadeOnce(Net):
    """A layer that the first forward makes, for it knows the width."""

    extra: nn.Module | None = None

    def middle(self, hidden: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Linear(hidden.shape[1], 8)
        return self.late(hidden)


class HalfCopies(Net):
    """The weights of the optimizer in another place, made anew for each forward; their gradients go back by hand."""

    def middle(self, hidden: Tensor) -> Tensor:
        self.copy = nn.Parameter(self.scale.detach().clone())
        return hidden * self.copy


def told(
    out: Path, model: nn.Module, *, also: Callable[[nn.Module], None] = lambda model: None,
    others: Callable[[nn.Module], list[torch.optim.Optimizer]] = lambda model: [],
    trained: Callable[[nn.Module], list[nn.Parameter]] = lambda model: list(model.parameters()), is_given: bool = False,
) -> list[tuple[str, str, str]]:  # fmt: skip
    torch.manual_seed(1)
    with contextlib.redirect_stderr(None), hypocenter.watch(*([model] if is_given else []), out=str(out)):
        optimizers = [torch.optim.AdamW(trained(model), lr=1e-2), *others(model)]
        for _ in range(20):
            for optimizer in optimizers:
                optimizer.zero_grad()
            out_of = model.forward if is_given else model  # a `training_step` is no call of a module either
            (out_of(torch.randn(8, 6)) - 1.0).square().mean().backward()
            also(model)
            for optimizer in optimizers:
                optimizer.step()
    return [(each.code, each.severity, each.site) for each in findings(out) if each.severity != "note"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "site"),
    [
        (Listed, "layers[0].weight"),
        (Tabled, "shifts['a']"),
        (Anew, "scale"),
        (LayerAnew, "extra.bias"),
    ],
)
def test_what_no_optimizer_can_hold_is_told(make: Callable[[], nn.Module], site: str, tmp_path: Path) -> None:
    torch.manual_seed(0)

    assert told(tmp_path, make()) == [("HC233", "warning", site)]


def in_a_wrapper() -> nn.Module:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = Listed(), nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.net(x))

    return Outer()


def test_it_is_named_from_the_model_down(tmp_path: Path) -> None:
    torch.manual_seed(0)

    assert told(tmp_path, in_a_wrapper()) == [("HC233", "warning", "net.layers[0].weight")]


def test_layers_that_no_forward_calls_are_found_in_their_list(tmp_path: Path) -> None:
    torch.manual_seed(0)

    assert told(tmp_path, Listed(), is_given=True) == [("HC233", "warning", "Listed.layers[0].weight")]


class Chosen(Net):
    """Its list holds layers that it has registered, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = [self.up, self.down]


@pytest.mark.parametrize("is_given", [False, True])
def test_registered_layers_in_a_list_that_the_optimizer_was_not_given(is_given: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)

    assert told(tmp_path, Chosen(), trained=lambda model: [model.scale], is_given=is_given) == []


def by_another(model: nn.Module) -> list[torch.optim.Optimizer]:
    assert isinstance(model, Listed)
    return [torch.optim.SGD([p for layer in model.layers for p in layer.parameters()], lr=1e-2)]


def by_hand(model: nn.Module) -> None:
    assert isinstance(model, Listed)
    with torch.no_grad():
        for layer in model.layers:
            for p in layer.parameters():
                p -= 0.01 * p.grad if p.grad is not None else 0.0
                p.grad = None


def given_on(model: nn.Module) -> None:
    assert isinstance(model, HalfCopies)
    assert model.copy.grad is not None
    model.scale.grad = model.copy.grad.clone()


def frozen() -> nn.Module:
    model = Listed()
    for layer in model.layers:
        layer.requires_grad_(False)
    return model


def in_evaluation() -> nn.Module:
    model = Listed()
    for layer in model.layers:
        layer.eval()
    return model


def copies() -> nn.Module:
    """Of what is trained: something to hold it against."""

    class Held(Net):
        def __init__(self) -> None:
            super().__init__()
            self.old = [nn.Linear(6, 8), nn.Linear(8, 1)]
            self.old[0].load_state_dict(self.up.state_dict())
            self.old[1].load_state_dict(self.down.state_dict())

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 0.1 * self.old[1](torch.tanh(self.old[0](x)))

    return Held()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "also", "others"),
    [
        pytest.param(Net, None, None, id="nothing hidden"),
        pytest.param(Listed, None, by_another, id="another optimizer has it"),
        pytest.param(Listed, by_hand, None, id="moved by hand"),
        pytest.param(lambda: Listed(1), None, None, id="hidden on purpose"),
        pytest.param(copies, None, None, id="copies of what is trained"),
        pytest.param(MadeOnce, None, None, id="the first forward makes a layer, before the optimizer steps"),
        pytest.param(frozen, None, None, id="frozen"),
        pytest.param(in_evaluation, None, None, id="set to evaluation"),
        pytest.param(HalfCopies, given_on, None, id="its gradient goes to another"),
    ],
)
def test_what_is_meant_so_is_not(
    make: Callable[[], nn.Module], also: Callable[[nn.Module], None] | None,
    others: Callable[[nn.Module], list[torch.optim.Optimizer]] | None, tmp_path: Path,
) -> None:  # fmt: skip
    torch.manual_seed(0)

    found = told(tmp_path, make(), also=also or (lambda _: None), others=others or (lambda _: []))

    assert found == []


def test_several_networks_in_a_list_each_with_its_optimizer(tmp_path: Path) -> None:
    torch.manual_seed(0)

    assert told(tmp_path, Listed(), others=by_another, is_given=True) == []
