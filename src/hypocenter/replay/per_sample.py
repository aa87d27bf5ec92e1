"""The loss and the gradient of each sample of a batch, in one vectorised run (torch.func)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hypocenter.replay.impossible import ReplayImpossible

AT_ONCE = 512 << 20  # bytes of gradients that are held together
_FEWEST = 4  # samples together, below which it is faster by halves

LossOf = Callable[..., tuple[Tensor, Any]]
"""(values of parameters, number of a row, is_flat=...) -> the loss that backward starts from, and what it is worth."""


def losses_and_norms(loss_of: LossOf, parameters: Sequence[Tensor], n_rows: int) -> tuple[list[float], list[float]]:
    """Return losses and gradient norms of each row of the batch alone.

    Args:
        loss_of: does the step again with one row.
        parameters: of whose gradients the norms are.
        n_rows: of the batch.

    Raises:
        ReplayImpossible: there is no room.
        Exception: of operations that cannot be vectorised.
    """
    n_bytes = sum(p.numel() * p.element_size() for p in parameters)
    together = min(n_rows, AT_ONCE // max(1, n_bytes))
    if together < min(_FEWEST, n_rows) or not parameters:
        raise ReplayImpossible("the gradients of several samples are too large to be held together")
    device = parameters[0].device

    def of_row(row: Tensor, is_flat: bool) -> tuple[Tensor, Tensor]:
        values = [p.detach() for p in parameters]
        of_values = torch.func.grad(lambda held: loss_of(held, row, is_flat=is_flat), has_aux=True)
        grads, loss = of_values(values)
        return loss, torch.stack([g.double().square().sum() for g in grads]).sum().sqrt()

    for is_flat in (False, True):
        try:
            each = torch.func.vmap(lambda row, flat=is_flat: of_row(row, flat), chunk_size=together, randomness="same")
            losses, norms = each(torch.arange(n_rows, device=device))
            return losses.tolist(), norms.tolist()
        except (RuntimeError, ValueError):
            if is_flat:
                raise
    raise AssertionError


def total(roots: Sequence[Tensor], seeds: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """Return what backward starts from as one number, and the sum of the losses in it."""
    parts = [
        root.sum() if seed is None else (root * seed.to(root.dtype)).sum()
        for root, seed in zip(roots, seeds, strict=True)
        if root.dtype.is_floating_point
    ]
    numbers = [root.detach().float().sum() for root in roots if root.numel() == 1]
    whole = torch.stack([part.float() for part in parts]).sum()
    return whole, torch.stack(numbers).sum() if numbers else whole.detach()


@contextlib.contextmanager
def parameters_replaced(modules: Sequence[nn.Module], stand_ins: Mapping[int, Tensor]) -> Generator[None, None, None]:
    """Put other tensors in the place of parameters, by the parameter's id; also in lists of them, as RNNs keep."""
    owners = [owner for outermost in modules for owner in outermost.modules()]
    held: list[tuple[Any, str | int, Any]] = [
        (owner._parameters, name, p) for owner in owners for name, p in owner._parameters.items() if id(p) in stand_ins
    ]
    lists = [values for owner in owners for values in vars(owner).values() if type(values) is list]
    held += [(values, i, p) for values in lists for i, p in enumerate(values) if id(p) in stand_ins]
    try:
        for holder, key, parameter in held:
            holder[key] = stand_ins[id(parameter)]
        yield
    finally:
        for holder, key, parameter in held:
            holder[key] = parameter
