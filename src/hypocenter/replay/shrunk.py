"""Parameters and buffers at their usual size while a step is done again: is it as usual then?"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping

from torch import Tensor, nn


def can_be(tensor: Tensor) -> bool:
    """Whether its values lie here as one plain tensor."""
    return type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and tensor.is_leaf


@contextlib.contextmanager
def shrunk(octaves: Mapping[Tensor, float]) -> Generator[None, None, None]:
    """Each tensor divided by two to so many octaves; afterwards it holds the very memory that it held before."""
    own = [(tensor, tensor.data) for tensor in octaves]
    try:
        for tensor, values in own:
            tensor.data = values * 2.0 ** -octaves[tensor]
        yield
    finally:
        for tensor, values in own:
            tensor.data = values
