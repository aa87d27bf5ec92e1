"""Healthy programs of several ranks, each with the stages of `programs.Program`, and errors that only they can have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from bench.mutations.mutations import Plant, Where
from bench.mutations.programs import N_TOKENS, WIDTH, Net, Program

SIZE = 2  # ranks


def _optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def _batches() -> torch.Generator:
    return torch.Generator().manual_seed(100 + dist.get_rank())


def _average(gradients: list[Tensor]) -> None:
    """Over all ranks, each by itself."""
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


def _gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def by_hand() -> Program:
    """Gradients are averaged by a function of the program."""
    model = Net()
    return Program(
        model, _optimizer(model.parameters()), n_micro=2, clip=1.0, batches=_batches(),
        reduce=lambda step: _average(_gradients(model)),
    )  # fmt: skip


def in_one_bucket() -> Program:
    """Gradients are averaged as one flat tensor."""
    model = Net()

    def reduce(step: int) -> None:
        flat = nn.utils.parameters_to_vector(_gradients(model))
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        start = 0
        for gradient in _gradients(model):
            gradient.copy_(flat[start : (start := start + gradient.numel())].view_as(gradient))

    return Program(model, _optimizer(model.parameters()), batches=_batches(), reduce=reduce)


def ddp() -> Program:
    """DistributedDataParallel, two micro-batches, each reduced."""
    model = Net()
    return Program(
        model, _optimizer(model.parameters()), n_micro=2, clip=1.0, batches=_batches(),
        called=DistributedDataParallel(model),
    )  # fmt: skip


def fsdp() -> Program:
    """`fully_shard`."""
    model = Net()
    fully_shard(model.up)
    fully_shard(model)
    return Program(model, _optimizer(model.parameters()), n_micro=2, batches=_batches())


def zero() -> Program:
    """Each rank updates every second parameter, and sends it to the others."""
    model = Net()
    parameters = list(model.parameters())
    own = parameters[dist.get_rank() :: dist.get_world_size()]

    def share(step: int) -> None:
        with torch.no_grad():
            for number, parameter in enumerate(parameters):
                dist.broadcast(parameter, number % dist.get_world_size())

    optimizer = _optimizer(own)
    optimizer.zero_grad = model.zero_grad  # also of those that the optimizer of this rank does not hold
    return Program(
        model, optimizer, batches=_batches(), reduce=lambda step: _average(_gradients(model)), share=share
    )  # fmt: skip


class _Copied(torch.autograd.Function):
    """Forward as it is, backward the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = grads[0].clone()
        dist.all_reduce(grad)
        return grad


class _Summed(torch.autograd.Function):
    """Forward the sum over ranks, backward as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


class Split(nn.Module):
    """Net whose wide layer is cut over ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(N_TOKENS, WIDTH), nn.LayerNorm(WIDTH)
        up, down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
        self.head = nn.Linear(WIDTH, N_TOKENS)
        size, rank = dist.get_world_size(), dist.get_rank()
        self.up, self.down = nn.Linear(WIDTH, 24 // size), nn.Linear(24 // size, WIDTH, bias=False)
        with torch.no_grad():
            self.up.weight.copy_(up.weight.chunk(size)[rank])
            self.up.bias.copy_(up.bias.chunk(size)[rank])
            self.down.weight.copy_(down.weight.chunk(size, 1)[rank])
        self.bias = nn.Parameter(down.bias.detach().clone())
        self.cut: Callable[[Tensor], Tensor] = lambda hidden: hidden
        self.copied: Callable[[Tensor], Tensor] = _Copied.apply

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.cut(self.norm(self.embed(tokens)))
        inner = self.down(functional.gelu(self.up(self.copied(hidden))))
        return self.head(hidden + _Summed.apply(inner) + self.bias)


def tensor_parallel() -> Program:
    """Layers cut over ranks by hand; all ranks have the same data."""
    model = Split()
    return Program(model, _optimizer(model.parameters()), n_micro=2, batches=torch.Generator().manual_seed(100))


RANK_PROGRAMS: dict[str, Callable[[], Program]] = {
    make.__name__: make for make in (by_hand, in_one_bucket, ddp, fsdp, zero, tensor_parallel)
}
AVERAGED = frozenset({"by_hand", "in_one_bucket", "zero"})  # whose average is the program's own


def _when(where: Where, act: Callable[[], Any]) -> Callable[[int], None]:
    def at(step: int) -> None:
        if where.is_now(step):
            act()

    return at


def _of_rank(act: Callable[[Program, Where], None]) -> Plant:
    """Before the average, on the last rank."""

    def plant(program: Program, where: Where) -> None:
        if dist.get_rank() == dist.get_world_size() - 1:
            program.stages.before_reduction = _when(where, lambda: act(program, where))

    return plant


def _grad(program: Program, where: Where) -> Tensor:
    grad = program.model.get_parameter(where.name).grad
    assert grad is not None
    return grad


def rank_is_left_out(program: Program, where: Where) -> None:
    """Its gradients are zero before the average."""
    for gradient in _gradients(program.model):
        gradient.zero_()


def rank_counts_double(program: Program, where: Where) -> None:
    """Its gradients are doubled before the average."""
    for gradient in _gradients(program.model):
        gradient.mul_(2)


def rank_has_another_loss_scale(program: Program, where: Where) -> None:
    """One parameter's gradient is scaled on one rank before the average."""
    _grad(program, where).mul_(8)


def sum_in_place_of_mean(program: Program, where: Where) -> None:
    """Of one parameter, on all ranks."""
    program.stages.after_backward = _when(where, lambda: _grad(program, where).mul_(dist.get_world_size()))


def not_averaged(program: Program, where: Where) -> None:
    """One parameter keeps each rank's own gradient."""
    kept: list[Tensor] = []
    program.stages.before_reduction = lambda step: kept.append(_grad(program, where).clone())
    program.stages.after_backward = _when(where, lambda: _grad(program, where).copy_(kept[-1]))


def replica_written(program: Program, where: Where) -> None:
    """One rank's parameter is moved after an update."""

    def act(step: int) -> None:
        if step == where.step and dist.get_rank() == dist.get_world_size() - 1:
            with torch.no_grad():
                program.model.get_parameter(where.name).mul_(1.01)

    program.stages.after_update = act


def rank_steps_not(program: Program, where: Where) -> None:
    """One rank leaves out its update."""
    if dist.get_rank() == dist.get_world_size() - 1:
        program.stages.n_updates = lambda step: 1 - int(where.is_now(step))


def rate_of_a_rank(program: Program, where: Where) -> None:
    """One rank's learning rate is another."""

    def act(step: int) -> None:
        if step == where.step and dist.get_rank() == dist.get_world_size() - 1:
            program.optimizer.param_groups[0]["lr"] *= 2

    program.stages.after_update = act


def not_shared(program: Program, where: Where) -> None:
    """What an update wrote is not sent to the others."""
    share = program.share
    program.share = lambda step: None if where.is_now(step) else share(step)


def no_sum_in_backward(program: Program, where: Where) -> None:
    """Each rank keeps its own part of the gradient behind the cut layer."""
    model: Any = program.model
    program.stages.after_update = lambda step: (
        setattr(model, "copied", lambda x: x) if where.is_now(step) else setattr(model, "copied", _Copied.apply)
    )


def replicated_gradient_doubled(program: Program, where: Where) -> None:
    """On one rank, after everything was summed."""
    if dist.get_rank() == dist.get_world_size() - 1:
        program.stages.after_backward = _when(where, lambda: _grad(program, where).mul_(2))


REPLICATED = frozenset({"by_hand", "in_one_bucket", "ddp", "tensor_parallel"})
# error -> how it is planted, and in which programs
RANK_MUTATIONS: dict[str, tuple[Plant, frozenset[str]]] = {
    "rank is left out": (_of_rank(rank_is_left_out), AVERAGED),
    "rank counts double": (_of_rank(rank_counts_double), AVERAGED),
    "scaled on a rank": (_of_rank(rank_has_another_loss_scale), AVERAGED),
    "sum in place of mean": (sum_in_place_of_mean, AVERAGED | {"ddp", "fsdp"}),
    "not averaged": (not_averaged, AVERAGED),
    "replica written": (replica_written, REPLICATED),
    "rank steps not": (rank_steps_not, REPLICATED | {"zero"}),
    "rate of a rank": (rate_of_a_rank, REPLICATED | {"zero"}),
    "not shared": (not_shared, frozenset({"zero"})),
    "no sum in backward": (no_sum_in_backward, frozenset({"tensor_parallel"})),
    "doubled on a rank": (replicated_gradient_doubled, REPLICATED),
}
OF_NO_PARAMETER = frozenset(
    {"rank is left out", "rank counts double", "rank steps not", "rate of a rank", "not shared", "no sum in backward"}
)
AFTER_UPDATE = frozenset({"replica written", "rate of a rank", "no sum in backward"})
REPLICATED_ONLY = frozenset({"replica written", "doubled on a rank"})  # of parameters that every rank holds whole
# errors of one process that fit each of these programs
SHARED = (
    "gradient zeroed", "gradient doubled", "gradient negated", "all gradients doubled", "weight scaled",
    "state zeroed", "state dropped", "gradient of the step before", "not zeroed", "not updated", "update undone",
    "updated twice", "frozen", "microbatch twice", "rate tenfold",
)  # fmt: skip
