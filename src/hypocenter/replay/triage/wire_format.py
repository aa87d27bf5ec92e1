"""A micro-batch as bytes and back: tensors, random states, what its calls look like. No pickle: msgpack."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from hypocenter.tap.state import RngState

DTYPES: dict[str, torch.dtype] = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32,
        torch.int64, torch.uint8, torch.bool, torch.complex64,
    )
}  # fmt: skip


class PackedTensor(msgspec.Struct, array_like=True):
    """Values of a dense tensor."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    requires_grad: bool = False


class PackedRng(msgspec.Struct, array_like=True):
    """States of all generators before a call."""

    cpu: bytes
    device: bytes | None
    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[str, bytes, int, int, float] | None
    trackers: tuple[dict[str, bytes], ...] = ()


class PackedCall(msgspec.Struct, array_like=True):
    """One call: what it looks like, and what came into it from outside."""

    looks: str
    tensors: tuple[PackedTensor, ...]
    buffers: tuple[PackedTensor, ...]
    rng: PackedRng | None


class Parcel(msgspec.Struct, array_like=True):
    """All that a neighbour needs to do a micro-batch; no calls: it cannot be done elsewhere, `why_not` says why."""

    alike: str = ""  # machine, libraries and settings: equal ones compute equal bits
    calls: tuple[PackedCall, ...] = ()
    seeds: tuple[PackedTensor | None, ...] = ()
    why_not: str = ""


class OpLine(msgspec.Struct, array_like=True):
    """One op of a replay: digests of what went in and came out."""

    op: str
    came_in: int
    came_out: int
    n_moved: int = 0  # elements with other bits when the rows were moved by one


class Answer(msgspec.Struct, array_like=True):
    """What a neighbour's device made of a micro-batch."""

    prints: dict[str, tuple[int, float]] = {}
    ops: tuple[OpLine, ...] = ()
    n_wrong: int = 0
    n_checked: int = 0
    alike: str = ""
    why_not: str = ""
    distances: tuple[float, ...] = ()  # of its further replays from its first


def to_tensor(value: Parcel | Answer) -> torch.Tensor:
    """Return the value as bytes in a tensor."""
    return torch.frombuffer(bytearray(msgspec.msgpack.encode(value)), dtype=torch.uint8)


def from_tensor(tensor: torch.Tensor | None, kind: type[Any]) -> Any:
    """Return a Parcel or Answer from bytes; None for none, or for bytes that are not one."""
    if tensor is None:
        return None
    try:
        return msgspec.msgpack.decode(tensor.numpy().tobytes(), type=kind)
    except (msgspec.DecodeError, ValueError):
        return None


def pack(tensor: torch.Tensor) -> PackedTensor:
    """Pack a tensor. Raises NotImplementedError for what is not dense, or of an unknown format."""
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or name not in DTYPES:
        raise NotImplementedError(f"a {name} tensor ({tensor.layout}) cannot be sent to a neighbour")
    values = tensor.detach().to("cpu").contiguous()
    data = values.reshape(-1).view(torch.uint8).numpy().tobytes() if values.numel() else b""
    return PackedTensor(name, tuple(values.shape), data, tensor.requires_grad)


def unpack(packed: PackedTensor, device: torch.device) -> torch.Tensor:
    """Return the tensor on a device."""
    dtype = DTYPES[packed.dtype]
    flat = (
        torch.frombuffer(bytearray(packed.data), dtype=torch.uint8)
        if packed.data
        else torch.empty(0, dtype=dtype, device="cpu")
    )
    values = (flat.view(dtype) if packed.data else flat).reshape(packed.shape).to(device)
    return values.requires_grad_() if packed.requires_grad else values


def pack_rng(state: RngState | None) -> PackedRng | None:
    """Pack random states as plain numbers; None if there are none."""
    if state is None:
        return None
    if state.own:
        raise NotImplementedError("it draws from a generator of the program's own, which cannot be sent to a neighbour")
    numpy = None
    if state.numpy is not None:
        kind, keys, position, has_gauss, cached = state.numpy
        numpy = (str(kind), keys.tobytes(), int(position), int(has_gauss), float(cached))
    return PackedRng(
        _bytes(state.cpu),
        None if state.device is None else _bytes(state.device),
        state.python,
        numpy,
        tuple({name: _bytes(each) for name, each in t.numbers().items()} for t in state.trackers),
    )


def _bytes(state: torch.Tensor) -> bytes:
    return state.cpu().numpy().tobytes()


def _state(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def unpack_rng(packed: PackedRng | None, own: RngState | None) -> RngState | None:
    """Return random states that `restore_rng` takes; None if there are none.

    Args:
        own: of this rank at the same place: device and trackers are those of this process.

    Raises:
        LookupError: here are other trackers.
    """
    if packed is None:
        return None
    trackers = () if own is None else own.trackers
    if [t.states.keys() for t in trackers] != [each.keys() for each in packed.trackers]:
        raise LookupError("the neighbour has other random states")
    numpy = None
    if packed.numpy is not None:
        import numpy as np

        kind, keys, position, has_gauss, cached = packed.numpy
        numpy = (kind, np.frombuffer(keys, dtype=np.uint32).copy(), position, has_gauss, cached)
    return RngState(
        cpu=_state(packed.cpu),
        device=None if packed.device is None else _state(packed.device),
        device_type=None if own is None else own.device_type,
        python=packed.python,
        numpy=numpy,
        trackers=tuple(
            here.with_numbers({name: _state(data) for name, data in there.items()})
            for here, there in zip(trackers, packed.trackers, strict=True)
        ),
    )
