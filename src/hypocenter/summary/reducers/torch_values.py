"""What numbers a torch tensor of any kind holds on this rank: a plain, detached, strided, real tensor, or nothing."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

_PLAIN = (Tensor, torch.nn.Parameter)


def local_values(t: Tensor) -> Tensor | None:
    """Return this rank's values without copying where possible; None where there are none to read.

    DTensor gives its local shard, AsyncCollectiveTensor waits, sparse gives its stored values, complex its real and
    imaginary parts. Meta, fake, quantized and functorch-wrapped tensors have nothing to read.
    """
    if type(t) not in _PLAIN:
        with torch._C.DisableTorchFunctionSubclass():
            unwrapped = _unwrap(t)
        return None if unwrapped is None else local_values(unwrapped)
    if t.device.type == "meta" or t.is_quantized or is_functorch_wrapped_tensor(t):
        return None
    x = t.detach()
    if x.layout is not torch.strided:
        x = _stored(x)
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return x.resolve_neg() if x.is_neg() else x


def n_elements(t: Tensor) -> int:
    """Return the number of elements, 0 where even that is unknown."""
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return int(t.numel())
    except Exception:  # nested tensors, and whatever a subclass refuses
        return 0


def in_a_row(x: Tensor) -> Tensor:
    """Return the elements along one axis, in any order: a view if they lie densely in memory, else a copy."""
    if x.is_contiguous():
        return x.view(-1)
    n = x.numel()
    return x.as_strided((n,), (1,)) if _is_dense(x) else x.reshape(-1)


def _is_dense(x: Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _unwrap(t: Tensor) -> Tensor | None:
    if hasattr(t, "fake_mode") or type(t).__name__ in ("FakeTensor", "FunctionalTensor"):
        return None
    if isinstance(local := getattr(t, "_local_tensor", None), Tensor):  # DTensor
        return local
    if hasattr(t, "trigger_wait") and isinstance(getattr(t, "elem", None), Tensor):  # AsyncCollectiveTensor
        waited = t.trigger_wait()  # pyright: ignore[reportAttributeAccessIssue]
        return waited if isinstance(waited, Tensor) else t.elem  # pyright: ignore[reportAttributeAccessIssue]
    if hasattr(t, "__tensor_flatten__"):  # any other wrapper: what it holds inside is not its value
        return None
    plain = t.detach().as_subclass(Tensor)
    return plain if type(plain) is Tensor else None


def _stored(x: Tensor) -> Tensor:
    if x.layout is torch.sparse_coo:
        return x._values()
    return x.values()
