"""A device that computes wrong results, below everything: the kernels of the CPU's float32 products are replaced.

Training, replays and checks all go through them, as they would through a faulty card. Float64 products and NumPy are
other units of the same machine, and stay right.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch

OPS = ("mm", "addmm", "bmm")
INTEGERS = {2: torch.int16, 4: torch.int32}
Corrupt = Callable[[str, tuple[Any, ...], torch.Tensor], None]


def flip(tensor: torch.Tensor, element: int, bit: int) -> None:
    """Flip one bit of one element in place."""
    width = 8 * tensor.element_size()
    flat = tensor.detach().view(INTEGERS[tensor.element_size()]).view(-1)
    mask = 1 << (bit % width)
    mask -= (1 << width) if mask >> (width - 1) else 0
    flat[element % flat.numel()] ^= mask


@contextlib.contextmanager
def faulty(corrupt: Corrupt) -> Generator[None, None, None]:
    """While inside, `corrupt(op, args, result)` may change the result of every float32 mm, addmm and bmm."""

    def kernel(name: str) -> Callable[..., torch.Tensor]:
        healthy = getattr(torch.ops.aten, name).out

        def run(*args: Any, **kwargs: Any) -> torch.Tensor:
            first, second = args[-2], args[-1]
            size = (*first.shape[:-1], second.shape[-1])
            result = torch.empty(size, dtype=first.dtype)
            healthy(*args, **kwargs, out=result)
            if result.dtype == torch.float32 and result.numel():
                corrupt(name, args, result)
            return result

        return run

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = torch.library.Library("aten", "IMPL")
        for name in OPS:
            library.impl(name, kernel(name), "CPU")
    try:
        yield
    finally:
        library._destroy()


@dataclass(slots=True, kw_only=True)
class Transient:
    """One bit of one element of the n-th product after `arm`; never again."""

    element: int
    bit: int
    n: int
    left: int = -1

    def arm(self) -> None:
        """The n-th product from here on is hit."""
        self.left = self.n

    def __call__(self, op: str, args: tuple[Any, ...], result: torch.Tensor) -> None:
        if self.left < 0:
            return
        if self.left == 0:
            flip(result, self.element, self.bit)
        self.left -= 1


@dataclass(slots=True, kw_only=True)
class Persistent:
    """The same bit of the same element of every result, once it is broken."""

    element: int
    bit: int
    is_broken: bool = False

    def arm(self) -> None:
        """It breaks."""
        self.is_broken = True

    def __call__(self, op: str, args: tuple[Any, ...], result: torch.Tensor) -> None:
        if self.is_broken:
            flip(result, self.element, self.bit)


def bits_of_result(bit: int) -> Corrupt:
    """A kernel that sets a bit of the first element of each row wrong."""

    def corrupt(op: str, args: tuple[Any, ...], result: torch.Tensor) -> None:
        for row in result.reshape(-1, result.shape[-1]):
            flip(row, 0, bit)

    return corrupt


def last_product_missing(op: str, args: tuple[Any, ...], result: torch.Tensor) -> None:
    """A kernel whose inner loop ends one too early."""
    a, b = args[-2], args[-1]
    result -= a[..., :, -1:] * b[..., -1:, :]


def in_bfloat16(op: str, args: tuple[Any, ...], result: torch.Tensor) -> None:
    """A kernel that computes in bfloat16 although nobody has allowed it to."""
    result.copy_(result.bfloat16().float())


def rows_swapped(op: str, args: tuple[Any, ...], result: torch.Tensor) -> None:
    """A kernel that writes the first two rows the wrong way round."""
    if result.shape[-2] > 1:
        result[..., :2, :] = result[..., :2, :].flip(-2).clone()
