"""A parameter that matters and gets no gradient is told from one that does not matter, and from one cut on purpose."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hypocenter.testing import RelationBroken, check_relations

X, LABELS = torch.randn(16, 8, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 3


class Two(nn.Module):
    """What the first layer gives goes through a function on its way to the second."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.beside, self.last, self.between = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3), between

    def forward(self, x):
        return self.last(self.between(self.first(x), self.beside(x)))


def chosen(h, other):
    """The index of the largest chooses, and its value weighs nothing."""
    return other * functional.one_hot(h.max(-1).indices, 8)


FLAT = {
    "round": lambda h, other: (4 * h).round() / 4 + other,
    "gt": lambda h, other: (h > 0).float() * other,
    "sign": lambda h, other: other + h.sign(),
    "max": chosen,
    "argmax": lambda h, other: other * (1 + h.argmax(-1, keepdim=True)),
    "item": lambda h, other: other * h.mean().item(),
    "tensor": lambda h, other: other * torch.tensor(h),
}
SILENT = {
    "a straight-through estimate": lambda h, other: h + ((4 * h).round() / 4 - h).detach() + other,
    "cut on purpose": lambda h, other: (h.detach() > 0).float() * other,
    "cut on purpose, and compared": lambda h, other: (h > 0).float() * other + h.detach(),
    "compared, and used": lambda h, other: torch.where(h > 0, h, 0.1 * h) + other,
    "looked at, and not used": lambda h, other: other + 0 * (h > 0).float(),
    "times zero": lambda h, other: other + h * torch.zeros(8),
    "never on": lambda h, other: other + (h - 100).relu(),
    "of no use": lambda h, other: other,
}


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize("operation", FLAT)
def test_what_has_no_gradient_is_named(operation):
    model = Two(FLAT[operation])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RelationBroken) as why:
        check_relations(model, X, loss=functional.cross_entropy, labels=LABELS)
    (found,) = [each for each in why.value.looked.losses if each.code == "HC258"]
    assert found.wrong.title == f"no gradient reaches first.weight and 1 more: {operation} has none"
    assert found.source.file.endswith("test_flat.py")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("between", SILENT.values(), ids=SILENT)
def test_what_is_meant_or_does_not_matter_is_not(between):
    check_relations(Two(between), X, loss=functional.cross_entropy, labels=LABELS)


class Rounded(nn.Linear):
    def forward(self, x):
        return functional.linear(x, (8 * self.weight).round() / 8, self.bias)


def test_layers_of_one_class_are_told_of_together():
    model = nn.Sequential(Rounded(8, 8), nn.ReLU(), Rounded(8, 3))
    with pytest.raises(RelationBroken) as why:
        check_relations(model, X, loss=functional.cross_entropy, labels=LABELS)

    (found,) = [each for each in why.value.looked.losses if each.code == "HC258"]
    assert found.parameters == ("0.weight", "2.weight")
    assert found.wrong.title == "no gradient reaches 0.weight and 1 more: round has none"


class Checkpointed(nn.Module):
    """Its second layer is recomputed; its first may be frozen."""

    def __init__(self, *, is_reentrant=True, is_frozen=True, begins=lambda h: h, inside=lambda layer, h: layer(h)):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.first.requires_grad_(not is_frozen)
        self.is_reentrant, self.begins, self.inside = is_reentrant, begins, inside

    def forward(self, x):
        h = self.begins(self.first(x))
        return self.last(checkpoint(lambda h: self.inside(self.second, h), h, use_reentrant=self.is_reentrant))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_reentrant_checkpoint_that_is_never_gone_back_through():
    with pytest.raises(RelationBroken) as why:
        check_relations(Checkpointed(), X, loss=functional.cross_entropy, labels=LABELS)
    (found,) = why.value.looked.losses
    assert (found.code, found.parameters) == ("HC258", ("second.weight", "second.bias"))
    assert found.wrong.title.startswith("no gradient reaches second.weight and 1 more: nothing that their reentrant")
    assert found.source.file.endswith("test_flat.py")


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("options", [
    {"is_reentrant": False}, {"begins": lambda h: h.requires_grad_()},
    {"inside": lambda layer, h: h + 0 * layer(h)},
])  # fmt: skip
def test_a_checkpoint_that_hands_on_gradients_or_does_not_matter(options):
    check_relations(Checkpointed(**options), X, loss=functional.cross_entropy, labels=LABELS)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_checkpoint_in_what_is_computed_without_gradients_on_purpose():
    class Taught(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher, self.head = Checkpointed(), nn.Linear(8, 3)

        def forward(self, x):
            with torch.no_grad():
                wanted = self.teacher(x)
            return self.head(x) + wanted

    check_relations(Taught(), X, loss=functional.cross_entropy, labels=LABELS)


class Again(torch.autograd.Function):
    """A checkpoint by hand, as people write it."""

    @staticmethod
    def forward(ctx, block, x, *parameters):
        ctx.block, ctx.parameters = block, parameters
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            out = ctx.block(x)
        return None, *torch.autograd.grad(out, (x, *ctx.parameters), grad)


class ByHand(nn.Module):
    """A frozen block is read as well; `names`: of the parameters that the function is given."""

    def __init__(self, *names, frozen=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.block, self.last = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(not frozen), nn.Linear(8, 3)
        self.names = names

    def forward(self, x):
        given = [p for name, p in self.block.named_parameters() if name in self.names]
        return self.last(Again.apply(self.block, self.first(x), *given))


@pytest.mark.parametrize(
    ("names", "who", "them"), [((), "block.weight and 1 more", "them"), (("weight",), "block.bias", "it")]
)
def test_a_function_of_ones_own_that_reads_what_it_is_not_given_is_named(names, who, them):
    with pytest.raises(RelationBroken) as why:
        check_relations(ByHand(*names), X, loss=functional.cross_entropy, labels=LABELS)

    (found,) = [each for each in why.value.looked.losses if each.code == "HC258"]
    assert found.wrong.title == f"no gradient reaches {who}: Again reads {them}, and is not given {them}"
    assert found.source.line == ByHand.forward.__code__.co_firstlineno + 2


@pytest.mark.parametrize("model", [ByHand("weight", "bias"), ByHand(frozen=True)])
def test_one_that_is_given_it_and_one_that_reads_what_is_frozen_are_not(model):
    check_relations(model, X, loss=functional.cross_entropy, labels=LABELS)


class Reversible(Again):
    """It adds to the gradients of the parameters itself, as reversible layers do."""

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            torch.autograd.backward(ctx.block(x), grad)
        return None, x.grad


def test_one_that_adds_to_gradients_itself_is_not():
    class Model(ByHand):
        def forward(self, x):
            return self.last(Reversible.apply(self.block, self.first(x)))

    check_relations(Model(), X, loss=functional.cross_entropy, labels=LABELS)
