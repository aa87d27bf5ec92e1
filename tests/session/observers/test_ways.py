"""The law of terms: a way to the loss that loses its gradient is told; what a program cuts on purpose is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

N_STEPS, AT, WIDTH, N_TOKENS = 20, 9, 12, 20


class Net(nn.Module):
    """Its embedding is its head too; a router has a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.router = nn.Embedding(N_TOKENS, WIDTH), nn.Linear(WIDTH, 2)
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
        self.step = 0
        self.of_head: Callable[[Tensor], Tensor] = lambda weight: weight
        self.of_branch: Callable[[Tensor], Tensor] = lambda hidden: hidden

    def hidden(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        share = self.router(hidden).softmax(-1)
        self.balance = share.mean(0).square().sum()
        return hidden + share[:, :1] * self.down(functional.gelu(self.up(self.of_branch(hidden))))

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.linear(self.hidden(tokens), self.of_head(self.embed.weight))


Loss = Callable[[Net, Tensor, int], Tensor]


def plain(model: Net, tokens: Tensor, step: int) -> Tensor:
    return functional.cross_entropy(model(tokens), (tokens + 1) % N_TOKENS) + 0.1 * model.balance


def train(out: Path, loss_of: Loss, n_steps: int = N_STEPS) -> list[Finding]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with hypocenter.watch(out=str(out), audit="every=1"):
        for step in range(n_steps):
            optimizer.zero_grad()
            model.step = step
            loss_of(model, torch.randint(0, N_TOKENS, (16,)), step).backward()
            optimizer.step()
    return [each for each in diagnose(open_run(out)).findings if "ways to the loss" in each.title]


def tied(model: Net, tokens: Tensor, step: int) -> Tensor:
    model.of_head = lambda weight: weight.detach() if step >= AT else weight
    return plain(model, tokens, step)


def branch(model: Net, tokens: Tensor, step: int) -> Tensor:
    model.of_branch = lambda hidden: hidden.data if step == AT else hidden
    return plain(model, tokens, step)


def term(model: Net, tokens: Tensor, step: int) -> Tensor:
    loss = functional.cross_entropy(model(tokens), (tokens + 1) % N_TOKENS)
    return loss + 0.1 * (model.balance.detach() if step >= AT else model.balance)


def no_grad_that_leaks(model: Net, tokens: Tensor, step: int) -> Tensor:
    def doubled(hidden: Tensor) -> Tensor:
        with torch.set_grad_enabled(step < AT):
            return 2 * hidden

    model.of_branch = doubled
    return plain(model, tokens, step)


FAULTS: dict[Loss, tuple[str, str]] = {
    tied: ("embed.weight", "the model"), branch: ("embed.weight", "up"), term: ("embed.weight", "loss"),
    no_grad_that_leaks: ("embed.weight", "up"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each.__name__)
def test_a_way_that_loses_its_gradient_is_told_at_its_step(tmp_path: Path, fault: Loss) -> None:
    name, where = FAULTS[fault]

    found = train(tmp_path / "run", fault)

    assert [(f.code, f.step, f.param, f.severity) for f in found] == [("HC233", AT, name, "note")]
    assert f"in {where} " in found[0].why[0]


def target(model: Net, tokens: Tensor, step: int) -> Tensor:
    """A slow copy, and a prediction that is not gone back from."""
    if step == 0:
        vars(model)["slow"] = copy.deepcopy(model)
    with torch.no_grad():
        wanted = vars(model)["slow"](tokens)
    own = model(tokens)
    return plain(model, tokens, step) + (own - wanted).square().mean() + (own.detach() - model(tokens)).square().mean()


def codes(model: Net, tokens: Tensor, step: int) -> Tensor:
    """A straight-through estimator with both losses of vector quantisation."""
    hidden = model.hidden(tokens)
    code = model.embed(torch.cdist(hidden, model.embed.weight).argmin(-1))
    through = hidden + (code - hidden).detach()
    pulled = (code - hidden.detach()).square().mean() + 0.2 * (code.detach() - hidden).square().mean()
    return functional.cross_entropy(functional.linear(through, model.embed.weight), tokens) + pulled


def conditioned_on_itself(model: Net, tokens: Tensor, step: int) -> Tensor:
    """At some steps on a first guess, without its gradient."""
    guess = torch.zeros(len(tokens), WIDTH)
    if step in (5, 8, 9, 15):
        with torch.no_grad():
            guess = model.hidden(tokens)
    return functional.cross_entropy(functional.linear(model.hidden(tokens) + guess, model.embed.weight), tokens)


def now_and_then(model: Net, tokens: Tensor, step: int) -> Tensor:
    """Every seventh step a term with a target of its own."""
    loss = plain(model, tokens, step)
    return loss + (model(tokens) - model(tokens).detach()).square().mean() if step % 7 == 6 else loss


def drawn_depth(model: Net, tokens: Tensor, step: int) -> Tensor:
    """Layers are left out, and of many only the last go back."""
    hidden = model.embed(tokens)
    n = (3, 2, 4, 3, 5, 1, 9, 2, 4, 7)[step % 10]
    for number in range(n):
        with torch.set_grad_enabled(n - number <= 3):
            hidden = hidden + model.down(functional.gelu(model.up(hidden)))
    return functional.cross_entropy(functional.linear(hidden, model.embed.weight), tokens)


def frozen(model: Net, tokens: Tensor, step: int) -> Tensor:
    model.embed.requires_grad_(step < AT)
    return plain(model, tokens, step)


def left_out(model: Net, tokens: Tensor, step: int) -> Tensor:
    """A term whose weight falls to nothing is not computed any more, but shown."""
    loss = functional.cross_entropy(model(tokens), (tokens + 1) % N_TOKENS)
    return loss + 0.1 * model.balance if step < AT else loss + 0.0 * float(model.balance.detach())


def checkpointed(model: Net, tokens: Tensor, step: int) -> Tensor:
    return checkpoint(lambda each: plain(model, each, step), tokens, use_reentrant=False)


class Doubled(torch.autograd.Function):
    """A backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x.detach() * 2).exp().log()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return 2 * grads[0]


def function_of_its_own(model: Net, tokens: Tensor, step: int) -> Tensor:
    model.of_branch = Doubled.apply if step % 2 or step < 4 else (lambda hidden: (hidden * 2).exp().log())
    return plain(model, tokens, step)


HEALTHY = (
    plain, target, codes, conditioned_on_itself, now_and_then, drawn_depth, frozen, left_out, checkpointed,
    function_of_its_own,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("loss_of", HEALTHY, ids=lambda each: each.__name__)
def test_what_is_cut_on_purpose_is_not_told(tmp_path: Path, loss_of: Loss) -> None:
    assert train(tmp_path / "run", loss_of) == []


def test_training_is_the_same_to_the_bit(tmp_path: Path) -> None:
    def trained(audit: str) -> list[Tensor]:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with hypocenter.watch(out=str(tmp_path / audit), audit=audit):
            for step in range(6):
                optimizer.zero_grad()
                codes(model, torch.randint(0, N_TOKENS, (16,)), step).backward()
                optimizer.step()
        return list(model.parameters())

    assert all(map(torch.equal, trained("never"), trained("every=1")))


class Probed(nn.Module):
    """A head on an encoder, cut off from it or not."""

    def __init__(self, cut: str) -> None:
        super().__init__()
        self.encoder, self.head, self.cut = nn.Linear(6, 8), nn.Linear(8, 3), cut
        self.encoder.requires_grad_(cut != "frozen")

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.cut != "without gradients"):
            hidden = self.encoder(x)
        return self.head(torch.tanh(hidden.detach() if self.cut == "detached" else hidden))


@pytest.mark.slow
@pytest.mark.parametrize(("cut", "n"), [("detached", 1), ("without gradients", 1), ("frozen", 0), ("not cut", 0)])
def test_what_an_optimizer_holds_and_never_gets_a_gradient_is_a_note(cut: str, n: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Probed(cut)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(out=str(tmp_path)):
        for _ in range(N_STEPS):
            optimizer.zero_grad()
            functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(0, 3, (16,))).backward()
            optimizer.step()

    found = [f for f in diagnose(open_run(tmp_path)).findings if f.code == "HC233"]
    assert [f.severity for f in found] == ["note"] * n
    assert all("ever comes back" in f.title for f in found)
