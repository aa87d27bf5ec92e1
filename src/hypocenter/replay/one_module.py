"""One module by itself on recorded values: what it gives, and the gradients that its backward gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hypocenter.compare.values.tensor_file import Stored
from hypocenter.tap.tree import flatten, replace_tensors


def ports(args: Any, kwargs: Any) -> list[tuple[str, Tensor]]:
    """Return the tensors among arguments by the names under which they are recorded."""
    found: list[tuple[str, Tensor]] = []
    for key, value in (*enumerate(args), *kwargs.items()):
        found += [(f"in[{key}]", value)] if isinstance(value, Tensor) else flatten(value, f"in[{key}]")
    return found


def fed(args: Any, kwargs: Any, stored: Mapping[str, Stored], call: int) -> tuple[Any, Any]:
    """Return the arguments with recorded tensors in place of the caller's own, where shapes are the same."""
    suffix = f"#{call}" if call else ""
    new: dict[int, Tensor] = {}
    for port, tensor in ports(args, kwargs):
        right = stored.get(f"{port}{suffix}")
        if right is not None and right.shape == tuple(tensor.shape):
            fed = tensor_of(right, tensor)
            new[id(tensor)] = fed.requires_grad_(tensor.requires_grad and fed.is_floating_point())

    def swap(tensor: Tensor) -> Tensor:
        return new.get(id(tensor), tensor)

    return replace_tensors(tuple(args), swap), replace_tensors(dict(kwargs), swap)


def executed(
    module: nn.Module, args: Any, kwargs: Any, stored: Mapping[str, Stored], suffix: str
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Run a module; return outputs, gradients of inputs and of own parameters. Random numbers and buffers stay."""
    fresh: dict[int, Tensor] = {}

    def leaf(tensor: Tensor) -> Tensor:
        if id(tensor) not in fresh:
            fresh[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return fresh[id(tensor)]

    args, kwargs = replace_tensors(tuple(args), leaf), replace_tensors(dict(kwargs), leaf)
    leaves = [(port, tensor) for port, tensor in ports(args, kwargs) if tensor.requires_grad]
    # a function in between: a module may write to its inputs, and leaves must not be written to
    passed: dict[int, Tensor] = {}

    def through(tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        return passed.setdefault(id(tensor), tensor.clone())

    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    with torch.random.fork_rng(), torch.enable_grad():
        output = module(*replace_tensors(args, through), **replace_tensors(kwargs, through))
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    outputs = dict(_outputs(output))
    own = [(key, param) for key, param in module._parameters.items() if param is not None and param.requires_grad]
    starts: list[tuple[Tensor, Tensor]] = []
    for port, tensor in outputs.items():
        right = stored.get(f"grad_{port}{suffix}")
        if tensor.requires_grad and right is not None and right.shape == tuple(tensor.shape):
            starts.append((tensor, tensor_of(right, tensor)))
    named = [*((f"grad_{port}", tensor) for port, tensor in leaves), *own]
    if not starts or not named or len(starts) < sum(tensor.requires_grad for tensor in outputs.values()):
        return outputs, {}, {}
    found: Sequence[Any] = torch.autograd.grad(
        [tensor for tensor, _ in starts], [tensor for _, tensor in named], [grad for _, grad in starts],
        allow_unused=True,
    )  # fmt: skip
    known: dict[str, Any] = dict(zip((name for name, _ in named), found, strict=True))
    gradients = {name: grad for name, grad in known.items() if grad is not None}
    keys = {key for key, _ in own}
    return (
        outputs,
        {name: grad for name, grad in gradients.items() if name not in keys},
        {name: grad for name, grad in gradients.items() if name in keys},
    )


def _outputs(output: Any) -> list[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        return [("out[0]", output)]
    if type(output) in (tuple, list):
        found: list[tuple[str, Tensor]] = []
        for key, value in enumerate(output):
            found += [(f"out[{key}]", value)] if isinstance(value, Tensor) else flatten(value, f"out[{key}]")
        return found
    return [(f"out{suffix}", tensor) for suffix, tensor in flatten(output)]


def tensor_of(stored: Stored, like: Tensor, *, keep_dtype: bool = False) -> Tensor:
    """Return recorded values as a tensor like another one: on its device, and in its format if both are floats."""
    values = torch.from_numpy(stored.values().copy())
    own = getattr(torch, stored.dtype, torch.float32)
    if keep_dtype or not (own.is_floating_point and like.is_floating_point()):
        return values.to(device=like.device, dtype=own)
    return values.to(device=like.device, dtype=like.dtype)


def array_of(tensor: Tensor) -> Any:
    """Return its values in float64 as a NumPy array."""
    return tensor.detach().to("cpu", torch.float64).numpy()
