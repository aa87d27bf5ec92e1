"""What each function of torch.distributed is given: what goes in, what comes out, over whom.

A reader has the signature of the function it stands for, so that Python binds the arguments. `src` and `dst` are global
ranks, `group_src` and `group_dst` ranks of the group.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple, cast

from torch import Tensor

from hypocenter.tap.own_frame import RAISED, hear


class Given(NamedTuple):
    """The arguments of one call, whatever the function calls them."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    group: Any = None
    reduce: Any = None  # a ReduceOp or its name
    is_async: bool = False
    peer: int | None = None  # global rank
    group_peer: int | None = None  # rank in the group
    dim: int = 0  # along which all ranks' parts lie in one tensor


def _flat(tensors: Any) -> tuple[Tensor, ...]:
    if isinstance(tensors, Tensor):
        return (tensors,)
    if not isinstance(tensors, (list, tuple)):
        return ()
    return tuple(t for each in cast("list[Any]", tensors) for t in _flat(each))


def all_reduce(tensor: Any, op: Any = "sum", group: Any = None, async_op: bool = False) -> Given:
    """Read an all-reduce of one tensor, or of several."""
    tensors = _flat(tensor)
    return Given(tensors, tensors, group, op, async_op)


def all_reduce_coalesced(tensors: Any, op: Any = "sum", group: Any = None, async_op: bool = False) -> Given:
    """Read an all-reduce of several tensors, under another name."""
    return all_reduce(tensors, op, group, async_op)


def reduce(
    tensor: Tensor, dst: int | None = None, op: Any = "sum", group: Any = None, async_op: bool = False,
    group_dst: int | None = None,
) -> Given:  # fmt: skip
    """Read a reduce to one rank; what the others find in their tensor afterwards is not defined."""
    return Given((tensor,), (tensor,), group, op, async_op, dst, group_dst)


def reduce_scatter(output: Any, input: Any, op: Any = "sum", group: Any = None, async_op: bool = False) -> Given:
    """Read a reduce-scatter with one input for each rank, or all of them in one tensor."""
    return Given(_flat(input), _flat(output), group, op, async_op)


def reduce_scatter_of_list(
    output: Any, input_list: Any, op: Any = "sum", group: Any = None, async_op: bool = False
) -> Given:
    """Read a reduce-scatter with a list of one input for each rank."""
    return reduce_scatter(output, input_list, op, group, async_op)


def all_gather(tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Given:
    """Read an all-gather with one output for each rank."""
    return Given(_flat(tensor), _flat(tensor_list), group, None, async_op)


def all_gather_into_tensor(output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> Given:
    """Read an all-gather into one output with all ranks' parts."""
    return Given((input_tensor,), (output_tensor,), group, None, async_op)


def all_gather_coalesced(
    output_tensor_lists: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
) -> Given:
    """Read an all-gather of several tensors at once."""
    return Given(_flat(input_tensor_list), _flat(output_tensor_lists), group, None, async_op)


def all_to_all(output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False) -> Given:
    """Read an all-to-all with one input and one output for each rank."""
    return Given(_flat(input_tensor_list), _flat(output_tensor_list), group, None, async_op)


def all_to_all_single(
    output: Tensor, input: Tensor, output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None, group: Any = None, async_op: bool = False,
) -> Given:  # fmt: skip
    """Read an all-to-all with all ranks' parts in one tensor; they are given apart, split along the first dimension."""
    return Given(_split(input, input_split_sizes), _split(output, output_split_sizes), group, None, async_op)


def _split(tensor: Tensor, sizes: Sequence[int] | None) -> tuple[Tensor, ...]:
    return tuple(tensor.detach().split(list(sizes))) if sizes else (tensor,)


def broadcast(
    tensor: Tensor, src: int | None = None, group: Any = None, async_op: bool = False, group_src: int | None = None
) -> Given:
    """Read a broadcast: the tensor is an input on the source, an output on all ranks."""
    return Given((tensor,), (tensor,), group, None, async_op, src, group_src)


def send(
    tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Given:
    """Read a send to one rank."""
    return Given((tensor,), (), group, None, False, dst, group_dst)


def recv(
    tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Given:
    """Read a receive from one rank, or from any (then there is no peer)."""
    return Given((), (tensor,), group, None, False, src, group_src)


def isend(*args: Any, **kwargs: Any) -> Given:
    """Read an asynchronous send."""
    return send(*args, **kwargs)._replace(is_async=True)


def irecv(*args: Any, **kwargs: Any) -> Given:
    """Read an asynchronous receive."""
    return recv(*args, **kwargs)._replace(is_async=True)


def gather(
    tensor: Tensor, gather_list: Any = None, dst: int | None = None, group: Any = None, async_op: bool = False,
    group_dst: int | None = None,
) -> Given:  # fmt: skip
    """Read a gather: there are outputs on the destination only."""
    return Given((tensor,), _flat(gather_list), group, None, async_op, dst, group_dst)


def scatter(
    tensor: Tensor, scatter_list: Any = None, src: int | None = None, group: Any = None, async_op: bool = False,
    group_src: int | None = None,
) -> Given:  # fmt: skip
    """Read a scatter: there are inputs on the source only."""
    return Given(_flat(scatter_list), (tensor,), group, None, async_op, src, group_src)


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: Any = None) -> Given:
    """Read a barrier: nothing goes in or comes out."""
    return Given((), (), group, None, async_op)


Reader = Callable[..., Given]

READERS: dict[str, tuple[str, Reader]] = {
    "all_reduce": ("all_reduce", all_reduce),
    "all_reduce_coalesced": ("all_reduce", all_reduce_coalesced),
    "reduce": ("reduce", reduce),
    "reduce_scatter": ("reduce_scatter", reduce_scatter_of_list),
    "reduce_scatter_tensor": ("reduce_scatter", reduce_scatter),
    "reduce_scatter_single": ("reduce_scatter", reduce_scatter),  # torch 2.13's name of the same
    "all_gather": ("all_gather", all_gather),
    "all_gather_into_tensor": ("all_gather", all_gather_into_tensor),
    "all_gather_single": ("all_gather", all_gather_into_tensor),
    "all_gather_coalesced": ("all_gather", all_gather_coalesced),
    "all_to_all": ("all_to_all", all_to_all),
    "all_to_all_single": ("all_to_all", all_to_all_single),
    "broadcast": ("broadcast", broadcast),
    "send": ("send", send),
    "recv": ("recv", recv),
    "isend": ("send", isend),
    "irecv": ("recv", irecv),
    "gather": ("gather", gather),
    "scatter": ("scatter", scatter),
    "barrier": ("barrier", barrier),
}
"""Function of torch.distributed -> (what we call it, its reader)."""


def f_all_reduce(self: Any, reduceOp: str, group: Any, tag: str = "") -> Given:
    """Read a functional all-reduce, whose result is what the call returns."""
    return Given(_flat(self), (), group, reduceOp, True)


def f_all_gather(self: Any, gather_dim: Any = None, group: Any = None, tag: str = "") -> Given:
    """Read a functional all-gather of all ranks' parts along some dimension."""
    return Given(_flat(self), (), group, None, True, dim=gather_dim if isinstance(gather_dim, int) else 0)


def f_reduce_scatter(self: Any, reduceOp: str, scatter_dim: Any = None, group: Any = None, tag: str = "") -> Given:
    """Read a functional reduce-scatter of this rank's part along some dimension."""
    return Given(_flat(self), (), group, reduceOp, True, dim=scatter_dim if isinstance(scatter_dim, int) else 0)


def f_all_to_all(self: Tensor, output_split_sizes: Any, input_split_sizes: Any, group: Any, tag: str = "") -> Given:
    """Read a functional all-to-all, split along the first dimension."""
    return Given(_split(self, input_split_sizes), (), group, None, True)


def f_broadcast(self: Tensor, src: int, group: Any, tag: str = "") -> Given:
    """Read a functional broadcast, in which `src` is a global rank."""
    return Given((self,), (), group, None, True, src)


FUNCTIONAL: dict[str, tuple[str, Reader]] = {
    "all_reduce": ("all_reduce", f_all_reduce),
    "all_gather_tensor": ("all_gather", f_all_gather),
    "all_gather_tensor_autograd": ("all_gather", f_all_gather),
    "all_gather_single": ("all_gather", f_all_gather),
    "all_gather_single_autograd": ("all_gather", f_all_gather),
    "reduce_scatter_tensor": ("reduce_scatter", f_reduce_scatter),
    "reduce_scatter_tensor_autograd": ("reduce_scatter", f_reduce_scatter),
    "reduce_scatter_single": ("reduce_scatter", f_reduce_scatter),
    "reduce_scatter_single_autograd": ("reduce_scatter", f_reduce_scatter),
    "all_to_all_single": ("all_to_all", f_all_to_all),
    "all_to_all_single_autograd": ("all_to_all", f_all_to_all),
    "broadcast": ("broadcast", f_broadcast),
}
"""Function of torch.distributed._functional_collectives (DTensor's collectives) -> (what we call it, its reader)."""


# Results of asynchronous collectives: they are there once somebody has waited.
#
# The classes of the handles (`Work`, `AsyncCollectiveTensor`) are patched only while a result is looked for, that is at
# scheduled steps. A result that nobody waits for in a way seen here (a callback, a stream wait in C++) is not reported.

Told = Callable[[], None]
_MAX_PENDING = 4096  # handles looked for at a time: each keeps its tensors alive


class Waits:
    """Tells when the handles of asynchronous collectives have been waited for."""

    def __init__(self) -> None:
        self._works: dict[int, tuple[Any, list[Told]]] = {}
        self._tensors: dict[int, tuple[Tensor, list[Told]]] = {}
        self._undos: dict[tuple[type, str], Callable[[], None]] = {}

    def after_work(self, works: Sequence[Any], tell: Told) -> None:
        """Call `tell` once all of these works have been waited for."""
        if not works or len(self._works) + len(works) > _MAX_PENDING:
            return
        left = {id(work) for work in works}

        def one(key: int) -> None:
            left.discard(key)
            if not left:
                tell()

        for work in works:
            self._patch(_definer(type(work), "wait"), "wait", self._waited_work)
            self._works.setdefault(id(work), (work, []))[1].append(functools.partial(one, id(work)))

    def after_tensor(self, result: Any, tell: Callable[[Tensor], None]) -> None:
        """Call `tell` with the values of an AsyncCollectiveTensor once it has been waited for."""
        elem = result.elem
        for name in ("trigger_wait", "wait"):
            self._patch(_definer(type(result), name), name, self._waited_tensor)
        key = elem.untyped_storage()._cdata
        self._tensors.setdefault(key, (elem, []))[1].append(functools.partial(tell, elem))

    def forget(self) -> None:
        """Wait for no results any more, and take the patches off."""
        self._works.clear()
        self._tensors.clear()
        for undo in self._undos.values():
            undo()
        self._undos.clear()

    def _waited_work(self, work: Any) -> None:
        known = self._works.get(id(work))
        if known is not None and known[0] is work:
            del self._works[id(work)]
            for tell in known[1]:
                tell()

    def _waited_tensor(self, result: Any) -> None:
        known = self._tensors.pop(result.elem.untyped_storage()._cdata, None)
        if known is not None:
            for tell in known[1]:
                tell()

    def _patch(self, owner: type, name: str, waited: Callable[[Any], None]) -> None:
        if (owner, name) in self._undos:
            return

        def begin(work: Any, *_: Any) -> Callable[[Any], None]:
            return lambda result: None if result is RAISED else waited(work)

        self._undos[owner, name] = hear(owner, name, begin)


def _definer(kind: type, name: str) -> type:
    return next(base for base in kind.__mro__ if name in vars(base))


Undo = Callable[[], None]
Make = Callable[[Callable[..., Any]], Callable[..., Any]]


def wrap_in_place(function: FunctionType, make: Make) -> Undo:
    """Wrap a function that stays the object it is. Returns the undo.

    Args:
        function: of a module. A closure that does not keep what it wraps under the name `func` is left alone.
        make: takes the original, gives what is called instead.
    """
    freevars = function.__code__.co_freevars
    if function.__closure__ and "func" in freevars:
        cell = function.__closure__[freevars.index("func")]
        original = cell.cell_contents
        cell.cell_contents = around = make(original)

        def put_back() -> None:
            if cell.cell_contents is around:
                cell.cell_contents = original

        return put_back
    return _wrap_plain(function, make) if not freevars else lambda: None


def _forward(*args: Any, **kwargs: Any) -> Any:
    return _name_to_be_replaced(*args, **kwargs)  # type: ignore[name-defined] # noqa: F821 # pyright: ignore


def _wrap_plain(function: FunctionType, make: Make) -> Undo:
    """Give an undecorated function code that calls ours, which it finds among its module's globals."""
    own, name = function.__code__, f"_hypocenter_{function.__name__}"
    original = FunctionType(own, function.__globals__, function.__name__, function.__defaults__)
    original.__kwdefaults__ = function.__kwdefaults__
    signature = inspect.signature(function)
    function.__globals__[name] = make(original)
    jump: CodeType = _forward.__code__.replace(co_names=(name,), co_name=own.co_name, co_filename=own.co_filename)
    function.__code__ = jump
    function.__signature__ = signature  # type: ignore[attr-defined]

    def put_back() -> None:
        if function.__code__ is jump:
            function.__code__ = own
            del function.__signature__  # type: ignore[attr-defined]
            function.__globals__.pop(name, None)

    return put_back


def wrap_attribute(module: Any, name: str, make: Make) -> Undo:
    """Replace a module's attribute by a wrapper, for all who look it up there. Returns the undo."""
    original = getattr(module, name)
    replacement = make(original)
    setattr(module, name, replacement)

    def put_back() -> None:
        if getattr(module, name) is replacement:
            setattr(module, name, original)

    return put_back
