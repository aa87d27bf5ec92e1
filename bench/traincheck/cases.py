"""The silent errors of the study that a CPU can show, each in a small program of its kind.

Those that are there from the first step are so here; the others begin at step AT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from bench.mutations.forked import run_ranks
from bench.mutations.programs import Net, Program, plain
from bench.mutations.ranks import by_hand, ddp, tensor_parallel
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

AT, N_STEPS, N_RANKS = 9, 24, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One silent error.

    Attributes:
        issues: as the artefact calls them.
        what: in words.
        make: the program, with the error in it.
        n_ranks: that it takes.
        step: at which the error begins.
        place: parameters or sites, one of which a right answer names; empty: any.
        published: whether TrainCheck detects it, as its artefact says.
        is_found: whether a law can.
    """

    issues: str
    what: str
    make: Callable[[], Program]
    n_ranks: int = 1
    step: int = AT
    place: tuple[str, ...] = ()
    published: str = "detected"
    is_found: bool = True


def _is_last() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def lost_in_transfer() -> Program:
    """What one rank receives is zeros."""
    made = by_hand()
    average = made.reduce

    def reduce(step: int) -> None:
        average(step)
        if step == AT and _is_last():
            for name in ("up.weight", "up.bias"):
                grad = made.model.get_parameter(name).grad
                assert grad is not None
                grad.zero_()

    made.reduce = reduce
    return made


def clipped_on_one_rank() -> Program:
    """Gradients pass the threshold of a clip, and only the first of the ranks that a layer is cut over clips."""
    made = tensor_parallel()

    def clip(step: int) -> None:
        if step >= AT and dist.get_rank() == 0:
            nn.utils.clip_grad_norm_(made.model.parameters(), 0.1)

    made.stages.after_backward = clip
    return made


def moved_in_between() -> Program:
    """The model goes to another format and back, and DDP's hooks stay with the parameters that were."""
    made = ddp()

    def move(step: int) -> None:
        if step == AT - 1:
            wrapped: Any = made.called
            wrapped.double()
            wrapped.float()

    made.stages.after_update = move
    return made


def wrapped_or_not() -> Program:
    """Some code calls the wrapper, some the module inside."""
    made = ddp()

    def choose(step: int) -> None:
        if step == AT - 1:
            made.called = made.model

    made.stages.after_update = choose
    return made


def optimizer_before_sharding() -> Program:
    """The optimizer holds the parameters that were there before the model was sharded."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fully_shard(model.up)
    fully_shard(model)
    return Program(model, optimizer, batches=torch.Generator().manual_seed(dist.get_rank()))


def never_zeroed() -> Program:
    """`zero_grad` is missing."""
    made = plain()
    made.stages.is_zeroed = lambda step: False
    return made


def step_of_an_older_graph() -> Program:
    """A compiled step that was traced while a layer was frozen is used after that."""
    made = plain()
    weight = made.model.get_parameter("up.weight")
    held: list[Any] = []

    def before(*_: Any) -> None:
        held.append(weight.grad)
        if len(held) > AT:
            weight.grad = None

    def after(*_: Any) -> None:
        weight.grad = held[-1]

    made.optimizer.register_step_pre_hook(before)
    made.optimizer.register_step_post_hook(after)
    return made


def almost_all_frozen() -> Program:
    """Only the norms are trained, and nobody meant it."""
    made = plain()
    for name, parameter in made.model.named_parameters():
        parameter.requires_grad_("norm" in name)
    return made


def not_frozen() -> Program:
    """What should have been frozen is trained: the function that does it is never called."""
    return plain()


CASES: tuple[Case, ...] = (
    Case(
        issues="baichuan2-86, pytorch-84803, pytorch-96600", what="data lost in a transfer between devices",
        make=lost_in_transfer, n_ranks=N_RANKS, place=("up.weight", "up.bias"),
    ),
    Case(
        issues="deepspeed-1801", what="one tensor-parallel rank clips, and norms drift apart",
        make=clipped_on_one_rank, n_ranks=N_RANKS,
    ),
    Case(
        issues="pytorch-104336", what="a DDP model is moved, and its gradients are not averaged any more",
        make=moved_in_between, n_ranks=N_RANKS,
    ),
    Case(
        issues="x-jxmnop-ddp-out-of-sync", what="the module is called past its DDP wrapper",
        make=wrapped_or_not, n_ranks=N_RANKS,
    ),
    Case(
        issues="accelerate-2665", what="the optimizer is made before the model is sharded",
        make=optimizer_before_sharding, n_ranks=N_RANKS, step=0,
    ),
    Case(issues="stackoverflow-60335387", what="`zero_grad` is missing", make=never_zeroed, step=1),
    Case(
        issues="pytorch-115607", what="a compiled step leaves out a parameter that was frozen when it was traced",
        make=step_of_an_older_graph, place=("up.weight",),
    ),
    Case(
        issues="pytorch-forum-84911", what="all but the norms is frozen by mistake", make=almost_all_frozen, step=0,
        is_found=False,
    ),
    Case(
        issues="mmpretrain-702", what="stages that should be frozen are trained", make=not_frozen, step=0,
        is_found=False,
    ),
)  # fmt: skip
ELSEWHERE = {
    "lightning-thunder-725": "needs that compiler: a matrix product is left out of autocast",
    "stackoverflow-67180955": "torch has seeded NumPy in its loader's processes since 1.9",
    "deepspeed-5794": "a hang, nothing silent; TrainCheck's artefact leaves it out",
    "pytorch-51800": "no training step: an evaluation before the first forward in training",
    "transformers-17877": "no training step: weights are drawn twice when a model is made",
    "transformers-23723": "no training step: generation does not stop",
    "transformers-33844": "no training step: dropout in evaluation, in a kernel of CUDA",
    "transformers-34204": "no training step: a processor of images returns one sample; the artefact leaves it out",
}
"""Issues of the study that are not done again, and why."""


def said_of(case: Case, audit: str = "every=1") -> list[Finding]:
    """What Hypocenter says of a run with this error: warnings, errors, and notes of laws."""
    from bench.mutations import rank_study, study

    rank_study.load()
    folder = Path(mkdtemp())  # a TemporaryDirectory would go with the first child that ends
    try:
        if case.n_ranks > 1:
            run_ranks(case.n_ranks, folder / "run", {"audit": audit}, lambda: _train(case))
        else:
            study.watched(lambda: _train(case), folder / "run", audit)
        return list(study.said(list(diagnose(open_run(folder / "run")).findings)))
    finally:
        rmtree(folder)


def _train(case: Case) -> None:
    torch.manual_seed(0)
    case.make().train(N_STEPS)


def rows() -> Iterator[tuple[Case, list[Finding]]]:
    """Each case with what is said of it; those of several ranks first: a process that has trained cannot be forked."""
    for case in sorted(CASES, key=lambda each: -each.n_ranks):
        yield case, said_of(case)
