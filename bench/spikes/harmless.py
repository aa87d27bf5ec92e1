"""Changes that a healthy program makes on purpose, or that chance brings: none of them is to accuse anybody."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.spikes.kinds import Where
from bench.spikes.programs import Batch, Program

HARMLESS: dict[str, Callable[[Program, Where], None]] = {}


def _harmless(plant: Callable[[Program, Where], None]) -> Callable[[Program, Where], None]:
    HARMLESS[plant.__name__.replace("_", " ")] = plant
    return plant


def _from(program: Program, where: Where, change: Callable[[Batch], Batch | None], n: int = 1000) -> None:
    """Batches of some steps are others."""

    def batch_at(step: int, micro: int, batch: Batch) -> Batch:
        return (change(batch) or batch) if where.step <= step < where.step + n else batch

    program.batch_at = batch_at


@_harmless
def hard_batch(program: Program, where: Where) -> None:
    """Targets that belong to other samples."""
    names = [name for name in ("y", "other") if name in program.batch(torch.Generator())]
    _from(program, where, lambda b: b | {name: b[name].roll(1, 0) for name in names}, n=1)


@_harmless
def learning_rate_restarts(program: Program, where: Where) -> None:
    def before(step: int) -> None:
        for part in program.parts:
            for group in part.optimizer.param_groups:
                group["lr"] = part.lr * (1.0 if step in range(where.step, where.step + 20) else 0.05)

    program.before = before


@_harmless
def new_stage_of_a_curriculum(program: Program, where: Where) -> None:
    def harder(b: Batch) -> Batch:
        if b["x"].is_floating_point():
            return b | {"x": 1.7 * b["x"] + 0.3 * torch.randn_like(b["x"])}
        return b | {"x": (b["x"] * 7 + 3) % 40}

    _from(program, where, harder)


@_harmless
def new_epoch(program: Program, where: Where) -> None:
    """Eight batches, in another order in each epoch."""
    original, known = program.batch, list[Batch]()

    def batch(g: torch.Generator) -> Batch:
        if len(known) < 8:
            known.append(original(g))
            return dict(known[-1])
        return dict(known[int(torch.randint(0, 8, (1,), generator=g))])

    program.batch = batch


@_harmless
def dropout_switched(program: Program, where: Where) -> None:
    drops = [m for part in program.parts for m in part.model.modules() if isinstance(m, nn.Dropout)]
    place = program.places[where.place][1]
    place.act = lambda place, x: nn.functional.dropout(x, place.strength, training=True)
    place.strength = 0.0

    def before(step: int) -> None:
        for drop in drops:
            drop.p = 0.4 if step >= where.step else 0.0
        place.strength = 0.4 if step >= where.step else 0.0

    program.before = before


@_harmless
def longer_sequences(program: Program, where: Where) -> None:
    """Four times as long, or as many samples."""
    dim = 1 if "edges" not in program.batch(torch.Generator()) else 0

    def longer(b: Batch) -> Batch:
        if b["x"].dim() == 2 and not b["x"].is_floating_point():
            return b | {name: torch.cat([b[name]] * 4, 1) for name in ("x", "y")}
        if b["x"].dim() == 3 and dim == 1:
            return b | {"x": torch.cat([b["x"]] * 4, 1)}
        return _varied({name: torch.cat([t] * 4, 0) for name, t in b.items()})

    _from(program, where, longer)


@_harmless
def harder_mix(program: Program, where: Where) -> None:
    """Few classes, few kinds of samples in the whole batch. (One alone is a fault of the data: HC412 says so.)"""

    def mixed(b: Batch) -> Batch:
        return _varied({name: t if name == "marked" else t[torch.arange(len(t)) % 3] for name, t in b.items()})

    _from(program, where, mixed, n=1)


def _varied(b: Batch) -> Batch:
    """Rows that are like one another, and no copies: these are a fault of the data, of which HC411 warns."""
    return b | {name: _near(t) for name, t in b.items() if name in ("x", "y", "other") and t.dim() > 1}


def _near(t: Tensor) -> Tensor:
    if t.is_floating_point():
        return t + 0.1 * torch.randn_like(t)
    return torch.where(torch.rand(t.shape) < 0.2, torch.randint_like(t, 40), t)
