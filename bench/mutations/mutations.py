"""Errors that leave everything finite: stage by stage, each at a step and a parameter that are drawn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.mutations.programs import Program


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where an error is planted."""

    step: int
    name: str  # of a parameter
    other: str  # of another of the same shape, or the same
    microbatch: int
    is_once: bool  # only at that step; else from it on

    def is_now(self, step: int) -> bool:
        """Whether the error is in this step."""
        return step == self.step if self.is_once else step >= self.step


Plant = Callable[[Program, Where], None]
MUTATIONS: dict[str, Plant] = {}
OF_ALL: set[str] = set()  # that are not about one parameter
NEEDS_MICRO: set[str] = set()  # that need several micro-batches
OF_WAYS = ("cut off", "branch cut off")  # that are about what comes first
SHIFTED: set[str] = set()  # whose first wrong step is the one after


def mutation(*, of_all: bool = False, micro: bool = False, shifted: bool = False) -> Callable[[Plant], Plant]:
    """Register an error by its function's name."""

    def register(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", " ").strip()
        MUTATIONS[name] = plant
        for is_in, names in ((of_all, OF_ALL), (micro, NEEDS_MICRO), (shifted, SHIFTED)):
            if is_in:
                names.add(name)
        return plant

    return register


def _parameter(program: Program, name: str) -> nn.Parameter:
    return program.model.get_parameter(name)


def _grad(program: Program, name: str) -> Tensor:
    grad = _parameter(program, name).grad
    assert grad is not None
    return grad


def _all_grads(program: Program) -> list[Tensor]:
    return [p.grad for p in program.model.parameters() if p.grad is not None]


def _on(where: Where, act: Callable[[], Any]) -> Callable[[int], None]:
    def when(step: int) -> None:
        if where.is_now(step):
            with torch.no_grad():
                act()

    return when


def _at_gradient(act: Callable[[Program, Where], Any]) -> Plant:
    def plant(program: Program, where: Where) -> None:
        program.stages.after_backward = _on(where, lambda: act(program, where))

    return plant


def _after_clip(act: Callable[[Program, Where], Any]) -> Plant:
    def plant(program: Program, where: Where) -> None:
        program.stages.after_clip = _on(where, lambda: act(program, where))

    return plant


def _after_update(act: Callable[[Program, Where], Any]) -> Plant:
    """Once, for what is written between two updates is there from then on."""

    def plant(program: Program, where: Where) -> None:
        def when(step: int) -> None:
            if step == where.step:
                with torch.no_grad():
                    act(program, where)

        program.stages.after_update = when

    return plant


def _add(name: str, plant: Plant, **kinds: bool) -> None:
    plant.__name__ = name
    mutation(**kinds)(plant)


_add("gradient dropped", _at_gradient(lambda p, w: setattr(_parameter(p, w.name), "grad", None)))
_add("gradient zeroed", _after_clip(lambda p, w: _grad(p, w.name).zero_()))
_add("gradient doubled", _at_gradient(lambda p, w: _grad(p, w.name).mul_(2)))
_add("gradient halved", _after_clip(lambda p, w: _grad(p, w.name).mul_(0.5)))
_add("gradient negated", _at_gradient(lambda p, w: _grad(p, w.name).neg_()))
_add("gradient cast", _after_clip(lambda p, w: _grad(p, w.name).copy_(_grad(p, w.name).to(torch.float8_e5m2))))
_add("gradient of half its rows", _at_gradient(lambda p, w: _grad(p, w.name)[::2].zero_()))
_add("gradient reversed", _at_gradient(lambda p, w: _grad(p, w.name).copy_(_grad(p, w.name).flip(0))))
_add("all gradients doubled", _after_clip(lambda p, w: [g.mul_(2) for g in _all_grads(p)]), of_all=True)
_add("all gradients halved", _after_clip(lambda p, w: [g.mul_(0.5) for g in _all_grads(p)]), of_all=True)
_add("weight scaled", _after_update(lambda p, w: _parameter(p, w.name).mul_(1.05)), shifted=True)
_add(
    "weight cast",
    _after_update(lambda p, w: _parameter(p, w.name).copy_(_parameter(p, w.name).bfloat16())),
    shifted=True,
)
_add("weight set to zero", _after_update(lambda p, w: _parameter(p, w.name)[:1].zero_()), shifted=True)
_add(
    "weights reversed",
    _after_update(lambda p, w: _parameter(p, w.name).copy_(_parameter(p, w.name).flip(0))),
    shifted=True,
)
_add("state dropped", _after_update(lambda p, w: p.optimizer.state.pop(_parameter(p, w.name), None)), shifted=True)
_add("state scaled", _after_update(lambda p, w: [v.mul_(3) for v in _state(p, w) if v.dim()]), shifted=True)
_add("state zeroed", _after_update(lambda p, w: [v.zero_() for v in _state(p, w)]), shifted=True)
_add("all state dropped", _after_update(lambda p, w: p.optimizer.state.clear()), of_all=True, shifted=True)


def _state(program: Program, where: Where) -> list[Tensor]:
    return [v for v in program.optimizer.state[_parameter(program, where.name)].values() if isinstance(v, Tensor)]


@mutation()
def gradients_exchanged(program: Program, where: Where) -> None:
    """Of two parameters of one shape."""

    def act() -> None:
        mine, others = _grad(program, where.name), _grad(program, where.other)
        held = mine.clone()
        mine.copy_(others)
        others.copy_(held)

    program.stages.after_backward = _on(where, act)


@mutation()
def gradient_of_the_step_before(program: Program, where: Where) -> None:
    """It is kept, and used one step late."""
    kept: list[Tensor] = []

    def act(step: int) -> None:
        now = _grad(program, where.name).clone()
        if where.is_now(step) and kept:
            _grad(program, where.name).copy_(kept[0])
        kept[:] = [now]

    program.stages.after_backward = act


@mutation()
def hook_scales(program: Program, where: Where) -> None:
    """A hook on the parameter begins to scale."""
    now = {"step": 0}
    inner = program.stages.is_zeroed

    def note(step: int) -> bool:
        now["step"] = step
        return inner(step)

    program.stages.is_zeroed = note
    _parameter(program, where.name).register_hook(lambda g: 0.3 * g if where.is_now(now["step"]) else g)


@mutation(of_all=True)
def not_zeroed(program: Program, where: Where) -> None:
    """What was used is used again."""
    program.stages.is_zeroed = lambda step: not where.is_now(step)


@mutation()
def one_gradient_not_zeroed(program: Program, where: Where) -> None:
    """Of one parameter the last gradient stays."""
    kept: list[Tensor] = []

    def after(step: int) -> None:
        if where.is_now(step) and kept:
            _grad(program, where.name).add_(kept[0])
        kept[:] = [_grad(program, where.name).clone()]

    program.stages.after_backward = after


@mutation(of_all=True, micro=True)
def microbatch_lost(program: Program, where: Where) -> None:
    """One is not gone back from."""
    program.stages.times = lambda step, number: int(not (where.is_now(step) and number == where.microbatch))


@mutation(of_all=True, micro=True)
def microbatch_twice(program: Program, where: Where) -> None:
    """One is gone back from twice."""
    program.stages.times = lambda step, number: 1 + int(where.is_now(step) and number == where.microbatch)


@mutation(of_all=True, micro=True)
def zeroed_in_between(program: Program, where: Where) -> None:
    """After the first micro-batch."""

    def after(step: int, number: int) -> None:
        if where.is_now(step) and number == 0:
            program.optimizer.zero_grad()

    program.stages.after_microbatch = after


@mutation(shifted=True)
def weight_of_before(program: Program, where: Where) -> None:
    """Three steps old."""
    kept: list[Tensor] = []

    def after(step: int) -> None:
        if step == max(0, where.step - 3):
            kept.append(_parameter(program, where.name).detach().clone())
        if step == where.step:
            _parameter(program, where.name).data.copy_(kept[0])

    program.stages.after_update = after


@mutation(of_all=True, shifted=True)
def all_weights_of_before(program: Program, where: Where) -> None:
    """Half a checkpoint: parameters without the optimizer's state."""
    kept: list[dict[str, Tensor]] = []

    def after(step: int) -> None:
        if step == max(0, where.step - 3):
            kept.append({k: v.clone() for k, v in program.model.state_dict().items()})
        if step == where.step:
            program.model.load_state_dict(kept[0])

    program.stages.after_update = after


@mutation()
def not_updated(program: Program, where: Where) -> None:
    """The optimizer does not see one gradient."""

    @contextlib.contextmanager
    def around(step: int) -> Generator[None, None, None]:
        parameter = _parameter(program, where.name)
        kept = parameter.grad
        if where.is_now(step):
            parameter.grad = None
        yield
        parameter.grad = kept

    program.stages.around_update = around


@mutation()
def update_undone(program: Program, where: Where) -> None:
    """What the optimizer did to one parameter is taken back."""

    @contextlib.contextmanager
    def around(step: int) -> Generator[None, None, None]:
        before = _parameter(program, where.name).detach().clone()
        yield
        if where.is_now(step):
            _parameter(program, where.name).data.copy_(before)

    program.stages.around_update = around


def _in_step(act: Callable[[Program, Where], Any]) -> Plant:
    """Inside the optimizer's step, after its rule: in a hook."""

    def plant(program: Program, where: Where) -> None:
        now = {"step": -1}

        @contextlib.contextmanager
        def around(step: int) -> Generator[None, None, None]:
            now["step"] = step
            yield

        def hook(*_: Any) -> None:
            if where.is_now(now["step"]):
                with torch.no_grad():
                    act(program, where)

        program.stages.around_update = around
        program.optimizer.register_step_post_hook(hook)

    return plant


_add("decayed in the step", _in_step(lambda p, w: _parameter(p, w.name).mul_(0.999)))
_add("rows zeroed in the step", _in_step(lambda p, w: _parameter(p, w.name)[:1].zero_()))
_add("state scaled in the step", _in_step(lambda p, w: [v.mul_(1.1) for v in _state(p, w) if v.dim()]))


@mutation()
def update_halved_in_the_step(program: Program, where: Where) -> None:
    """What the rule adds to one parameter is halved."""
    kept: list[Tensor] = []
    program.optimizer.register_step_pre_hook(
        lambda *_: kept.__setitem__(slice(None), [_parameter(program, where.name).detach().clone()])
    )
    _in_step(lambda p, w: _parameter(p, w.name).lerp_(kept[0], 0.5))(program, where)


@mutation(of_all=True)
def updated_twice(program: Program, where: Where) -> None:
    """With the same gradients."""
    program.stages.n_updates = lambda step: 1 + int(where.is_now(step))


@mutation(of_all=True)
def update_skipped(program: Program, where: Where) -> None:
    """The gradients are thrown away."""
    program.stages.n_updates = lambda step: 1 - int(where.is_now(step))


@mutation()
def frozen(program: Program, where: Where) -> None:
    """By a flag."""

    def act() -> None:
        _parameter(program, where.name).requires_grad_(False)
        _parameter(program, where.name).grad = None

    program.stages.after_update = _on(where, act)


@mutation()
def cut_off(program: Program, where: Where) -> None:
    """`detach` in the model."""
    model: Any = program.model
    program.stages.after_update = _on(where, lambda: setattr(model, "cut", lambda hidden: hidden.detach()))


@mutation()
def branch_cut_off(program: Program, where: Where) -> None:
    """`detach` in the model, on one of two ways to the loss."""
    model: Any = program.model
    program.stages.after_update = _on(where, lambda: setattr(model, "branch", lambda hidden: hidden.detach()))


@mutation()
def module_built_anew(program: Program, where: Where) -> None:
    """The optimizer holds the old one."""

    def act() -> None:
        path, _, _ = where.name.rpartition(".")
        owner, old = program.model.get_submodule(path.rpartition(".")[0]), program.model.get_submodule(path)
        new = type(old)(*_sizes(old))
        setattr(owner, path.rpartition(".")[2], new)

    def when(step: int) -> None:
        if step == where.step:
            act()

    program.stages.after_update = when


def _sizes(module: nn.Module) -> tuple[int, ...]:
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if isinstance(module, nn.Embedding):
        return module.num_embeddings, module.embedding_dim
    return tuple(module.weight.shape)  # type: ignore[union-attr, return-value]


@mutation(of_all=True)
def rate_of_zero(program: Program, where: Where) -> None:
    """One group does not learn any more."""
    program.stages.after_update = _on(where, lambda: program.optimizer.param_groups[0].update(lr=0.0))


@mutation(of_all=True)
def rate_tenfold(program: Program, where: Where) -> None:
    """One group jumps."""

    def when(step: int) -> None:
        if step == where.step:
            program.optimizer.param_groups[0]["lr"] *= 10

    program.stages.after_update = when
