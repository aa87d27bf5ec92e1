"""What an item of a data set, or a batch, is made of: its arrays, numbers and words, and where they stand in it."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

MOST_BYTES = 64 << 20  # of one array
_DEEPEST = 12
PLAIN_WORDS = (bool, int, float, str, bytes)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, Enum)


class Unknown(Exception):
    """It holds something of which nobody can say whether it is the same."""


def leaves(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield (name, leaf) of a nested value: tensors, arrays, numbers and words.

    Raises:
        Unknown: it holds something else.
    """
    if isinstance(value, PackedSequence) or depth > _DEEPEST:
        raise Unknown(name)
    if isinstance(value, (Tensor, *_PLAIN)) or is_array(value):
        yield name, value
        return
    for key, child in _children(value, name):
        yield from leaves(child, f"{name}[{key}]", depth + 1)


def _children(value: Any, name: str) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from cast("Mapping[Any, Any]", value).items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(cast("list[Any]", value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name)
    elif type(value).__module__.startswith("PIL."):
        yield "pixels", cast("Any", value).tobytes()
    else:
        raise Unknown(name)


def is_array(value: Any) -> bool:
    """Return whether this is an array, or a number, of NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def shape_of(leaf: Any) -> tuple[int, ...]:
    """Return the shape of a leaf; () for what is no array."""
    return tuple(leaf.shape) if isinstance(leaf, Tensor) or is_array(leaf) else ()


def bits(leaf: Any) -> bytes:
    """Return what a leaf is, to the bit.

    Raises:
        Unknown: it does not lie in host memory as it is, or is too large.
    """
    if isinstance(leaf, Tensor):
        if leaf.device.type != "cpu" or leaf.layout != torch.strided or leaf.is_quantized:
            raise Unknown
        if leaf.numel() * leaf.element_size() > MOST_BYTES:
            raise Unknown
        plain = leaf.detach().resolve_conj().resolve_neg().contiguous()
        held = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{leaf.dtype} {tuple(leaf.shape)} ".encode() + held
    if is_array(leaf):
        if leaf.dtype.hasobject or leaf.nbytes > MOST_BYTES:
            raise Unknown
        return f"{leaf.dtype} {leaf.shape} ".encode() + leaf.tobytes()
    return f"{type(leaf).__name__} {leaf!r}".encode()


def digest(value: Any) -> bytes:
    """Return 16 bytes that are the same for what is the same to the bit.

    Raises:
        Unknown: nobody can say.
    """
    state = hashlib.blake2b(digest_size=16)
    for name, leaf in leaves(value):
        held = bits(leaf)
        state.update(f"{name} {len(held)} ".encode())
        state.update(held)
    return state.digest()


def overlaps(one: Any, other: Any) -> bool:
    """Return whether two leaves are arrays that lie in the same memory."""
    first, second = extent(one), extent(other)
    return first is not None and second is not None and first[0] < second[1] and second[0] < first[1]


def extent(leaf: Any) -> tuple[int, int] | None:
    """Return where in memory an array begins and ends; None for what is none, or an empty one."""
    if isinstance(leaf, Tensor):
        begin, size, shape = leaf.data_ptr(), leaf.element_size(), tuple(leaf.shape)
        strides = tuple(size * by for by in leaf.stride())
    elif is_array(leaf) and hasattr(leaf, "__array_interface__"):
        begin, size, shape, strides = leaf.__array_interface__["data"][0], leaf.itemsize, leaf.shape, leaf.strides
    else:
        return None
    if 0 in shape:
        return None
    spans = [(n - 1) * by for n, by in zip(shape, strides, strict=True)]
    return begin + sum(min(span, 0) for span in spans), begin + sum(max(span, 0) for span in spans) + size
