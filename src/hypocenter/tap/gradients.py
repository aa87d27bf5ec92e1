"""Norms of many tensors in a few kernels and one transfer: what sentinel reads of all gradients and parameters."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray

SMALL = 2048  # elements: of larger tensors a kernel for each is faster than a copy of all
ROW = 8192  # elements that are copied together
_DTYPE, _IS_CPU, _LAYOUT = map(operator.attrgetter, ("dtype", "is_cpu", "layout"))
_GRAD = operator.attrgetter("grad")
_STRIDED = {torch.strided}
_HOST_DTYPES = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))
PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))  # which have nothing to unwrap


def local(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the dense values on this rank: the local shard of a DTensor, the values of a sparse tensor.

    None for what has no values here (meta tensors, empty ones, unknown layouts). To be read only: what needs no
    gradient comes back as it is.
    """
    if type(tensor) not in PLAIN_TYPES:
        if hasattr(tensor, "to_local"):
            tensor = tensor.to_local()  # type: ignore[operator]
        if hasattr(tensor, "wait") and type(tensor).__name__ == "AsyncCollectiveTensor":
            tensor = tensor.wait()  # type: ignore[operator]
    if tensor.layout is not torch.strided:
        if tensor.layout is not torch.sparse_coo:
            return None
        tensor = tensor._values()
    if tensor.is_meta or tensor.numel() == 0 or not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    return tensor.detach() if tensor.requires_grad else tensor


def are_plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether `local` would return each as it is, in a few passes over all in place of many calls."""
    return (
        PLAIN_TYPES.issuperset(map(type, tensors))
        and all(
            layout is torch.strided and not is_meta and (dtype.is_floating_point or dtype.is_complex)
            for layout, is_meta, dtype in {(t.layout, t.is_meta, t.dtype) for t in tensors}
        )
        and all(map(torch.Tensor.numel, tensors))
    )


class Gradients(Sequence[tuple[torch.Tensor, torch.Tensor]]):
    """Pairs of a parameter and its gradient. Who wants one of the two alone need not take thousands of pairs apart.

    Args:
        parameters: each with a gradient.
        values: the gradients, in the same order.
    """

    __slots__ = ("parameters", "values")

    def __init__(self, parameters: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        self.parameters, self.values = parameters, values

    @classmethod
    def of(cls, parameters: Sequence[torch.Tensor]) -> Gradients:
        """Return the gradients in `.grad` of those of these parameters that have one."""
        found = list(map(_GRAD, parameters))
        if any(map(operator.is_, found, itertools.repeat(None))):
            parameters = [p for p, g in zip(parameters, found, strict=True) if g is not None]
            found = [g for g in found if g is not None]
        return cls(parameters, found)

    def __len__(self) -> int:
        return len(self.parameters)

    @overload
    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]: ...
    @overload
    def __getitem__(self, at: slice) -> Gradients: ...
    def __getitem__(self, at: int | slice) -> tuple[torch.Tensor, torch.Tensor] | Gradients:
        if isinstance(at, slice):
            return Gradients(self.parameters[at], self.values[at])
        return self.parameters[at], self.values[at]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return zip(self.parameters, self.values, strict=True)


class NormReader:
    """Reads L2 norms of tensors on the CPU that come again and again: where each lies is found once.

    Small ones are laid one behind the other: a kernel for each costs more than their numbers. Rows of them are short:
    memory that fits the cache and that the allocator gives again. Fresh pages would cost most of it.

    Args:
        tensors: for which `are_plain` holds. Others may take their places as long as `fits` says so.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._n, self._dtypes = len(tensors), set(map(_DTYPE, tensors))
        self.is_on_host = all(map(_IS_CPU, tensors))
        sizes = [t.numel() if t.dtype in _HOST_DTYPES else ROW + 1 for t in tensors]
        at_most = ROW if sum(sizes) <= ROW else SMALL  # one copy of a few is faster than a kernel for some of them
        self._small = [i for i, n in enumerate(sizes) if n <= at_most]
        self._large = [i for i, n in enumerate(sizes) if n > at_most]
        bounds = np.cumsum([0, *(sizes[i] for i in self._small)])
        self._rows: list[tuple[int, int, int, NDArray[np.int64]]] = []  # first tensor, end; elements, where each begins
        begin = 0
        while begin < len(self._small):
            end = int(np.searchsorted(bounds[:-1], bounds[begin] + ROW))  # the first that begins outside of this row
            self._rows.append((begin, end, int(bounds[end] - bounds[begin]), bounds[begin:end] - bounds[begin]))
            begin = end

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether these look as plain as the first ones were. Sizes are looked at only when they are read."""
        return (
            PLAIN_TYPES.issuperset(map(type, tensors))
            and set(map(_LAYOUT, tensors)) == _STRIDED
            and (not tensors or tensors[0].dtype in self._dtypes)
        )

    def read(self, tensors: Sequence[torch.Tensor]) -> list[float]:
        """Return the norms, those of small tensors in float64.

        Raises:
            TypeError, RuntimeError, ValueError: these are of other sizes than the first ones, or on other devices.
        """
        if not self._large:
            return self._of_small(tensors) if tensors else []
        if not self._small:
            return to_host(norms(tensors))
        found = self._of_small([tensors[i] for i in self._small])
        out = dict(zip(self._small, found, strict=True))
        out.update(zip(self._large, to_host(norms([tensors[i] for i in self._large])), strict=True))
        return [out[i] for i in range(self._n)]

    def _of_small(self, tensors: Sequence[torch.Tensor]) -> list[float]:
        found: list[NDArray[np.float64]] = []
        had_grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # `no_grad` is six calls of Python, and a step would notice those
        try:
            for begin, end, length, starts in self._rows:
                row = torch._C._nn.flatten_dense_tensors(tensors[begin:end])  # type: ignore[reportAttributeAccessIssue]
                if row.numel() != length:
                    raise ValueError("the tensors have other sizes")
                if row.dtype is torch.float64:  # of no other format do sums overflow, of which NumPy would warn
                    with np.errstate(over="ignore"):
                        found.append(np.add.reduceat(row.square().numpy(), starts))  # one tensor is not copied above
                else:
                    found.append(np.add.reduceat(row.double().square_().numpy(), starts))
        finally:
            torch._C._set_grad_enabled(had_grad)
        return np.sqrt(found[0] if len(found) == 1 else np.concatenate(found)).tolist()


def read_norms(tensors: Sequence[torch.Tensor]) -> list[float] | None:
    """Return L2 norms of tensors on the CPU, of small ones in float64; None if some are on another device.

    Args:
        tensors: dense, with at least one element each.
    """
    return NormReader(tensors).read(tensors) if all(map(_IS_CPU, tensors)) else None


def norms(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return L2 norms in float32 (0-d, on their device), one per tensor; nothing is transferred.

    A norm may overflow to inf although every element is finite (above 1.8e19 each, sqrt of float32's largest): a
    non-finite norm is a reason to look, not a verdict.
    """
    kinds = {(tensor.device, tensor.dtype) for tensor in tensors}
    if len(kinds) == 1:
        return _norms_of_one_kind(list(tensors), tensors[0].dtype)
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(index)
    out: list[torch.Tensor | None] = [None] * len(tensors)
    for (_, dtype), indices in groups.items():
        results = _norms_of_one_kind([tensors[i] for i in indices], dtype)
        for index, result in zip(indices, results, strict=True):
            out[index] = result
    return [norm for norm in out if norm is not None]


@torch.no_grad()
def _norms_of_one_kind(group: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    if dtype in (torch.float32, torch.bfloat16, torch.float16):
        return list(torch._foreach_norm(group, 2, dtype=torch.float32))
    return [torch.linalg.vector_norm(t.float() if dtype.itemsize == 1 else t).float() for t in group]


def to_host(scalars: Sequence[torch.Tensor]) -> list[float]:
    """Bring 0-d tensors of any device to the host as floats, with one transfer per device."""
    if len({scalar.device for scalar in scalars}) == 1:
        return to_vector(scalars).tolist()
    by_device: dict[torch.device, list[int]] = {}
    for index, scalar in enumerate(scalars):
        by_device.setdefault(scalar.device, []).append(index)
    out = [0.0] * len(scalars)
    for indices in by_device.values():
        for index, value in zip(indices, to_vector([scalars[i] for i in indices]).tolist(), strict=True):
            out[index] = value
    return out


def to_vector(scalars: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return 0-d tensors of one device as one vector in float32, on that device."""
    return torch.stack(list(map(_as_scalar, scalars)))


def _as_scalar(scalar: torch.Tensor) -> torch.Tensor:
    if scalar.dim() == 0 and scalar.dtype is torch.float32:
        return scalar
    return scalar.reshape(()).float()


def to_host_with(
    scalars: Sequence[torch.Tensor], vectors: Sequence[torch.Tensor]
) -> tuple[list[float], list[list[float]]]:
    """Bring 0-d tensors and float32 vectors of any device to the host, still with one transfer per device."""
    if not vectors:
        if len(scalars) == 1 and (one := scalars[0]).is_cpu and one.dtype is torch.float32 and one.numel() == 1:
            return [one.item()], []  # the loss of most programs
        return to_host(scalars), []
    by_device: dict[torch.device, tuple[list[int], list[int]]] = {}
    for index, scalar in enumerate(scalars):
        by_device.setdefault(scalar.device, ([], []))[0].append(index)
    for index, vector in enumerate(vectors):
        by_device.setdefault(vector.device, ([], []))[1].append(index)
    out, told = [0.0] * len(scalars), [list[float]() for _ in vectors]
    for ones, many in by_device.values():
        stacked = [to_vector([scalars[i] for i in ones])] if ones else []
        host: list[float] = torch.cat([*stacked, *(vectors[i] for i in many)]).tolist()
        for index, value in zip(ones, host, strict=False):
            out[index] = value
        start = len(ones)
        for index in many:
            told[index] = host[start : (start := start + vectors[index].numel())]
    return out, told


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether every element is finite. Synchronises: only for a tensor that is already under suspicion."""
    return bool(torch.isfinite(tensor).all())
