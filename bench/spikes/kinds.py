"""Kinds of jumps: each is planted at a step, and says what is right to be told of it.

The line that a finding should show ends with `# JUMP: ` and the kind. What has to do with samples is at rows of the
batch that are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.spikes.programs import Batch, Part, Place, Program

Act = Callable[[Place, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where a jump is planted."""

    step: int
    place: str  # a module of the first part
    row: int
    microbatch: int
    strength: float  # 1.0: as much as the kind needs in most programs

    @property
    def exponent(self) -> float:
        """What is raised by the strength where it stands in an exponent: 1.0, twice as much for 8 times."""
        return 2.0 ** math.log(self.strength, 8)


@dataclass(frozen=True, kw_only=True)
class Right:
    """What is right to be told."""

    line: str = ""  # what the shown line ends with
    leaf: tuple[str, ...] = ()  # or the names of a tensor, one of which is right
    is_of_row: bool = False
    says: str = ""  # or what the cause is, or one of the finding's lines holds
    later: int = 0  # steps after that at which it is planted


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of jump."""

    plant: Callable[[Program, Where], None]
    right: Callable[[Program, Where], Right]
    programs: tuple[str, ...] = ()  # in which it can be; empty: in all
    is_of_row: bool = False


KINDS: dict[str, Kind] = {}


def _kind(
    right: Right | Callable[[Program, Where], Right], programs: tuple[str, ...] = ()
) -> Callable[[Callable[[Program, Where], None]], Callable[[Program, Where], None]]:
    def register(plant: Callable[[Program, Where], None]) -> Callable[[Program, Where], None]:
        is_of_row = isinstance(right, Right) and right.is_of_row
        of = (lambda program, where: right) if isinstance(right, Right) else right
        KINDS[plant.__name__.replace("_", " ")] = Kind(plant=plant, right=of, programs=programs, is_of_row=is_of_row)
        return plant

    return register


def _at_step(program: Program, where: Where, act: Callable[[bool], None]) -> None:
    """Tell `act` before each step whether it is the one."""
    program.before = lambda step: act(step == where.step)


def _place(program: Program, where: Where, act: Act, usual: float, then: float) -> None:
    """An operation in every step, with another strength at one."""
    place = program.places[where.place][1]
    place.act = act
    _at_step(program, where, lambda is_now: setattr(place, "strength", then if is_now else usual))


def _rows(program: Program, where: Where, change: Callable[[Batch], None]) -> None:
    def batch_at(step: int, micro: int, batch: Batch) -> Batch:
        if step == where.step and micro == where.microbatch:
            change(batch)
        return batch

    program.batch_at = batch_at


def _marked(program: Program, where: Where, act: Act) -> None:
    """An operation that does another thing to a marked row."""
    program.places[where.place][1].act = act
    program.places[where.place][1].strength = where.strength
    _rows(program, where, lambda batch: batch["marked"].__setitem__(where.row, 1.0))


@_kind(Right(line="division", is_of_row=True))
def division_by_a_tiny_spread(program: Program, where: Where) -> None:
    def act(place: Place, x: Tensor) -> Tensor:
        x = x * (1 - place.of_rows(x)) + x.detach().flatten(1)[:, :1].reshape(-1, *[1] * (x.dim() - 1)) * place.of_rows(
            x
        )
        spread = x.float().std(-1, keepdim=True, unbiased=False)
        return x / (spread + 1e-5 / place.strength)  # JUMP: division

    _marked(program, where, act)


@_kind(Right(line="temperature"))
def temperature_near_zero(program: Program, where: Where) -> None:
    def act(place: Place, x: Tensor) -> Tensor:
        return x / place.strength  # JUMP: temperature

    _place(program, where, act, 1.0, 0.003 / where.strength)


def _twin(place: Place, x: Tensor) -> Tensor:
    """Another sample to compare with; of a marked row almost itself."""
    mark, own = place.of_rows(x), x.detach()
    return (own * (1 - max(2e-6 / place.strength, 2.5e-7)) - 1e-9) * mark + (own.roll(1, -1) + 0.5) * (1 - mark)


@_kind(Right(line="root", is_of_row=True))
def derivative_of_a_root_near_zero(program: Program, where: Where) -> None:
    def act(place: Place, x: Tensor) -> Tensor:
        distance = (x.float() - _twin(place, x.float())).abs()
        return x + torch.sqrt(distance)  # JUMP: root

    _marked(program, where, act)


@_kind(Right(line="norm", is_of_row=True))
def derivative_of_a_norm_near_zero(program: Program, where: Where) -> None:
    def act(place: Place, x: Tensor) -> Tensor:
        x = x.float() * (1 - place.of_rows(x)) + 1e-7 * x * place.of_rows(x)
        return (x + 0.1) / (x.norm(dim=-1, keepdim=True) + 1e-4 / place.strength)  # JUMP: norm

    _marked(program, where, act)


@_kind(Right(line="logarithm", is_of_row=True))
def logarithm_near_zero(program: Program, where: Where) -> None:
    def act(place: Place, x: Tensor) -> Tensor:
        distance = (x.float() - _twin(place, x.float())).abs()
        return x + 0.1 * torch.log(distance)  # JUMP: logarithm

    _marked(program, where, act)


@_kind(Right(line="exponential"))
def exponential_of_a_large_number(program: Program, where: Where) -> None:
    def act(place: Place, x: Tensor) -> Tensor:
        return x * torch.exp(torch.sigmoid(x).float() * place.strength)  # JUMP: exponential

    _place(program, where, act, 1.0, 1 + 6 * where.exponent)


@_kind(Right(line="power"))
def power_of_a_large_number(program: Program, where: Where) -> None:
    def act(place: Place, x: Tensor) -> Tensor:
        return x * torch.pow(1 + x.float().abs(), place.strength)  # JUMP: power

    _place(program, where, act, 2.0, 2 + 5 * where.exponent)


@_kind(Right(line="terms"))
def sum_over_many_more_terms(program: Program, where: Where) -> None:
    def act(place: Place, x: Tensor) -> Tensor:
        n = round(place.strength)
        return x.unsqueeze(0).expand(n, *x.shape).sum(0)  # JUMP: terms

    _place(program, where, act, 2.0, max(8, round(200 * where.strength)))


@_kind(Right(line="mean over a small count"))
def mean_over_a_small_count(program: Program, where: Where) -> None:
    program.terms.is_masked = True
    _at_step(program, where, lambda is_now: setattr(program.terms, "count", 0.01 / where.strength if is_now else 1.0))


@_kind(Right(line="recurrence"))
def exploding_recurrence(program: Program, where: Where) -> None:
    def act(place: Place, x: Tensor) -> Tensor:
        h = torch.zeros_like(x)
        for t in range(10):
            h = h * (place.strength if t > 3 else 0.5) + x  # JUMP: recurrence
        return h

    _place(program, where, act, 0.5, 1 + 3 * where.exponent)


@_kind(Right(line="scores"))
def attention_logits_that_grow(program: Program, where: Where) -> None:
    def act(place: Place, x: Tensor) -> Tensor:
        x2 = x if x.dim() == 3 else x.unsqueeze(1)
        scores = x2 @ x2.transpose(1, 2) * place.strength  # JUMP: scores
        return (x2 + (scores - scores.mean()).logsumexp(-1, keepdim=True)).view_as(x)

    _place(program, where, act, 0.1, 300.0 * where.strength)


@_kind(Right(line="weight of a term"))
def loss_term_of_another_weight(program: Program, where: Where) -> None:
    usual = program.terms.weight
    then = 3e4 * usual * where.strength
    _at_step(program, where, lambda is_now: setattr(program.terms, "weight", then if is_now else usual))


@_kind(Right(line="sum in place of mean"))
def sum_in_place_of_mean(program: Program, where: Where) -> None:
    _at_step(program, where, lambda is_now: setattr(program.terms, "reduction", "sum" if is_now else "mean"))


_FLOATS = ("vit", "graph", "recurrent", "contrastive", "diffusion", "adversarial", "policy")


@_kind(Right(leaf=("batch[0]",), is_of_row=True), _FLOATS)
def outlier_in_one_sample(program: Program, where: Where) -> None:
    _rows(program, where, lambda batch: batch["x"][where.row].mul_(300 * where.strength))


@_kind(Right(is_of_row=True), ("graph", "recurrent", "diffusion", "policy"))
def outlier_in_one_target(program: Program, where: Where) -> None:
    _rows(program, where, lambda batch: batch["y"][where.row].add_(200 * where.strength))


@_kind(Right(is_of_row=True), ("gpt", "recurrent"))
def one_sample_of_huge_length(program: Program, where: Where) -> None:
    """What is summed over time."""

    def act(place: Place, x: Tensor) -> Tensor:
        mark = place.of_rows(x)
        long = x.unsqueeze(0).expand(max(8, round(200 * place.strength)), *x.shape)
        return x + (long * mark).sum(0)

    _marked(program, where, act)


@_kind(Right(leaf=("batch[0]",)), _FLOATS)
def batch_without_normalisation(program: Program, where: Where) -> None:
    _rows(program, where, lambda batch: batch["x"].mul_(255 * where.strength))


def _written(program: Program, where: Where, name: str) -> None:
    parameter = program.parts[0].model.get_parameter(name)

    def act(is_now: bool) -> None:
        if is_now:
            with torch.no_grad():
                (parameter[where.row % 10] if name == "time.weight" else parameter).mul_(300 * where.strength)

    _at_step(program, where, act)


@_kind(Right(leaf=("time.weight",)), ("diffusion",))
def embedding_row_blown_up(program: Program, where: Where) -> None:
    _written(program, where, "time.weight")


def _weight(program: Program, where: Where) -> str:
    names = [
        n
        for n, p in program.parts[0].model.named_parameters()
        if p.dim() > 1 and n not in ("embed.weight", "time.weight")
    ]
    return names[where.row % len(names)]


@_kind(lambda program, where: Right(leaf=(_weight(program, where),)))
def weights_written_to_between_steps(program: Program, where: Where) -> None:
    _written(program, where, _weight(program, where))


@_kind(Right(says="the learning rate rose", later=1))
def learning_rate_raised_for_a_step(program: Program, where: Where) -> None:
    part = program.parts[0]

    def act(is_now: bool) -> None:
        for group in part.optimizer.param_groups:
            group["lr"] = part.lr * (1000 * where.strength if is_now else 1)

    _at_step(program, where, act)


@_kind(Right(says="mode"))
def mode_switched(program: Program, where: Where) -> None:
    """Statistics of a norm that are of other data, used at one step."""
    part, place = program.parts[0], program.places[where.place][1]
    place.norm = None

    def act(place: Place, x: Tensor) -> Tensor:
        if place.norm is None:
            place.norm = nn.BatchNorm1d(x.shape[-1], affine=False, momentum=0.0)
        return place.norm(50 * where.strength * x.flatten(0, -2)).view_as(x)

    place.act = act
    _at_step(program, where, lambda is_now: _switch(part, is_training=not is_now))


def _switch(part: Part, *, is_training: bool) -> None:
    for module in part.model.modules():
        module.training = is_training


@_kind(Right(line="hook"))
def gradient_multiplied_by_a_hook(program: Program, where: Where) -> None:
    place = program.places[where.place][1]

    def act(place: Place, x: Tensor) -> Tensor:
        if x.requires_grad:
            x = x * 1
            x.register_hook(lambda grad: grad * place.strength)  # JUMP: hook
        return x

    place.act = act
    _at_step(program, where, lambda is_now: setattr(place, "strength", 3000.0 * where.strength if is_now else 1.0))


@_kind(lambda program, where: Right(leaf=(), line="statistics"))
def batchnorm_of_constant_rows(program: Program, where: Where) -> None:
    place = program.places[where.place][1]

    def act(place: Place, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2).float()
        flat = flat + (flat[:1] - flat).detach() * place.strength
        return x + functional.batch_norm(flat, None, None, training=True, eps=1e-12).view_as(x)  # JUMP: statistics

    place.act = act
    _at_step(program, where, lambda is_now: setattr(place, "strength", 1 - 1e-4 / where.strength if is_now else 0.0))
