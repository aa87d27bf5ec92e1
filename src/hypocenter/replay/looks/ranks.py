"""The effective rank of what products with parameters read, by a sketch of its columns.

exp of the entropy of the singular values over their sum (Roy and Vetterli 2007), of the rows as they are. Rows with
more than SKETCH columns are multiplied by a random matrix first, which keeps ranks well below SKETCH.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from hypocenter.detect.health_rows import RANK
from hypocenter.replay.looking import Call, Found, look
from hypocenter.summary.reducers.torch_float64 import in_float64
from hypocenter.tap.op_tensors import storage_key

SKETCH = 64  # columns
_ROWS = 1024
_NOISE = 1e-12  # of the largest square: rounding, in float64
_READ = {"mm": "self", "addmm": "mat1", "linear": "input"}  # operator -> what it multiplies with a parameter


@look("ranks")
def find(call: Call) -> Iterator[Found]:
    """Yield the effective rank of what a product with a parameter reads, once for all that read the same."""
    if not call.step.features or not call.of_module or call.step.op not in _READ:
        return
    x = call.given[_READ[call.step.op]]
    if call.trace.parameter_of(x) or x.shape[-1] < 2 or not x.is_floating_point():
        return
    made = call.trace.made(x)
    key = (made.index if made is not None else storage_key(x), x.shape[-1])
    if key in call.trace.ranked:
        return
    call.trace.ranked.add(key)
    rows = x.detach().reshape(-1, x.shape[-1])
    rows = in_float64(rows[:: -(-rows.shape[0] // _ROWS)])
    n, d = rows.shape
    if d > SKETCH:
        rows = rows @ _projection(d).to(rows)
    gram = rows.T @ rows
    gram = gram / gram.diagonal().sum().clamp_min(1e-300)
    possible = min(n, d, SKETCH)
    yield Found(step=call.step, port=RANK, values=gram.reshape(-1), then=lambda g: (_rank(g), possible, n))


@functools.lru_cache(maxsize=64)
def _projection(d: int) -> Tensor:
    generator = torch.Generator().manual_seed(d)
    return torch.randn(d, SKETCH, generator=generator, dtype=torch.float64, device="cpu") / SKETCH**0.5


def _rank(gram: Sequence[float]) -> float:
    matrix = np.asarray(gram, np.float64)
    size = round(len(matrix) ** 0.5)
    squares = np.linalg.eigvalsh(matrix.reshape(size, size))
    values = np.sqrt(squares[squares > _NOISE * squares[-1]])
    shares = values / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else 0.0
