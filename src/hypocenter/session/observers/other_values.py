"""A micro-batch done again with other values in buffers and attributes of modules: does its loss depend on them?"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hypocenter.relations.subject import Ran, Subject
from hypocenter.tap.gradients import to_host
from hypocenter.tap.tree import replace_tensors

_ROUNDINGS = 4  # of a loss

Values = Mapping[tuple[nn.Module, str], Any]
"""Tensors, structures of tensors, or numbers, by module and name."""


def losses_that_differ(subject: Subject, usual: Ran, values: Values, limit: float) -> tuple[float, float] | None:
    """Return the usual loss and the one with these values; None where they move no output by more than the limit."""
    ran = subject.run(beside=with_values(values))
    a, b = _loss(usual), _loss(ran)
    is_other = abs(a - b) > _ROUNDINGS * max(torch.finfo(loss.dtype).eps for loss in ran.losses) * max(abs(a), abs(b))
    return (a, b) if is_other and _moved(usual, ran) > limit else None


def _moved(before: Ran, after: Ran) -> float:
    """Return how far the output of a module has moved that has moved most, relative to its size."""
    pairs = [(a.double(), after.outputs[key].double()) for key, a in before.outputs.items() if key in after.outputs]
    pairs = [(a, b) for a, b in pairs if a.shape == b.shape and a.numel()]
    host = to_host([number for a, b in pairs for number in ((a - b).norm(), a.norm())])
    return max((gap / size for gap, size in zip(host[::2], host[1::2], strict=True) if size), default=0.0)


def _loss(ran: Ran) -> float:
    return sum(to_host([loss.sum() for loss in ran.losses]))


@contextlib.contextmanager
def with_values(values: Values) -> Generator[None, None, None]:
    """Let buffers and plain attributes of modules have other values in this block."""
    owners: list[dict[str, Any]] = [m._buffers if key in m._buffers else vars(m) for m, key in values]
    tables = [(owner, key, value) for owner, ((_, key), value) in zip(owners, values.items(), strict=True)]
    were = [table[key] for table, key, _ in tables]
    try:
        for table, key, value in tables:
            table[key] = copied(value)
        yield
    finally:
        for (table, key, _), was in zip(tables, were, strict=True):
            table[key] = was


def copied(value: Any) -> Any:
    """Return the same structure with copies of its tensors, without their graphs."""
    return replace_tensors(value, _copy)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()
