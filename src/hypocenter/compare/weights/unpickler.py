"""Pickles of checkpoints read as data: nothing that is named in one is ever imported, called or built.

A pickle is a program. Here its globals are looked up in a table of a few dozen names; each stands for a small function
of this file that makes plain data of its arguments. Everything else is one error that names it. Opcodes that a
checkpoint does not need, and that could take any amount of memory, are not understood.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from hypocenter.compare.weights.checkpoint import CheckpointError
from hypocenter.compare.weights.elements import STORED

AT_MOST_BYTES = 1 << 30  # of one pickle; the metadata of a checkpoint of 10^6 shards is about a third of it
_AT_MOST_NODES = 20_000_000
_UNWANTED = (
    pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER, pickle.EXT1, pickle.EXT2, pickle.EXT4,
    pickle.INST, pickle.OBJ, pickle.PERSID, pickle.NEWOBJ_EX, pickle.DUP,
)  # fmt: skip


class PlainObject:
    """Attributes of an object of a class that is known by name only: argparse.Namespace, DCP's metadata."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.attributes: dict[str, Any] = {}
        self.items: tuple[Any, ...] = ()

    def get(self, name: str, default: Any = None) -> Any:
        """Return one attribute, or the default."""
        return self.attributes.get(name, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """An object that is kept because it is harmless; it is never looked at and has no values for us."""

    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRef:
    """A storage by its number in the archive."""

    key: str
    dtype: str | None  # None: bytes without a type
    n: int  # elements


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRef:
    """A tensor as the pickle describes it: offset and strides in elements of its storage."""

    storage: StorageRef
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """A dtype of torch, such as torch.float32."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A global of the pickle that is in the table, and what stands for calling it."""

    name: str
    make: Callable[..., Any]


def loads(data: bytes, where: str) -> Any:
    """Read a pickle as plain containers, PlainObjects, TensorRefs and Opaques; nothing is executed.

    Raises:
        CheckpointError: it names something that is not in the table, or is damaged.
    """
    if len(data) > AT_MOST_BYTES:
        raise CheckpointError("the pickle is too large", where=where, why=f"{len(data):,} bytes")
    try:
        return _Restricted(io.BytesIO(data), where).load()
    except CheckpointError:
        raise
    except Exception as error:  # of garbage anything may come
        why = f"{type(error).__name__}: {error}"[:200]
        raise CheckpointError("the pickle is damaged", where=where, why=why, fix="save the checkpoint again") from error


def walk(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield leaves of nested dicts and lists, with the keys that lead to them. A container that holds itself is cut."""
    stack: list[tuple[tuple[str, ...], Any, frozenset[int]]] = [(path, value, frozenset())]
    n = 0
    while stack:
        here, node, above = stack.pop()
        n += 1
        if n > _AT_MOST_NODES:
            raise CheckpointError("the pickle unfolds without end", why=f"more than {_AT_MOST_NODES:,} entries")
        if isinstance(node, (dict, list, tuple)):
            if id(node) in above or len(above) > 50:
                continue
            inside = above | {id(node)}
            entries = node.items() if isinstance(node, dict) else enumerate(node)  # type: ignore[union-attr]
            stack += [((*here, str(key)), inner, inside) for key, inner in reversed(list(entries))]
        else:
            yield here, node


class _Restricted(pickle._Unpickler):
    """Python's own unpickler: its memo is a dict, which garbage cannot make large."""

    dispatch: ClassVar[dict[int, Any]] = {
        code: do for code, do in pickle._Unpickler.dispatch.items() if bytes([code]) not in _UNWANTED
    }

    def __init__(self, file: io.BytesIO, where: str) -> None:
        self.stack: list[Any] = []
        super().__init__(file, encoding="utf-8", errors="replace")
        self.where = where

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a global, from the table; any other raises CheckpointError."""
        full = f"{module}.{name}"
        if full in _TABLE:
            return _TABLE[full]
        if module == "torch" and name in STORED:
            return DType(name=name)
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return Known(name=full, make=lambda *_: Opaque(kind=full))
        if module.partition(".")[0] == "megatron":  # enumerations among the arguments of a Megatron run
            return Known(name=full, make=lambda *_: PlainObject(full))
        return self._refuse(full)

    def persistent_load(self, pid: Any) -> StorageRef:
        """Return the storage that ('storage', class, key, device, number of elements) describes."""
        match pid:
            case ("storage", Known(name=name), str(key), str(), int(n)) if n >= 0:
                return StorageRef(key=key, dtype=_STORAGES[name.rpartition(".")[2]], n=n)
            case _:
                raise CheckpointError("a storage is not described as torch does", where=self.where, why=repr(pid)[:200])

    def load_reduce(self) -> None:
        """Make what stands for the result of a call."""
        arguments = self.stack.pop()
        self.stack[-1] = self._made(self.stack[-1], arguments)

    load_newobj = load_reduce

    def load_build(self) -> None:
        """Set attributes of a PlainObject; the state of a dict or an Opaque is dropped, any other is refused."""
        state = self.stack.pop()
        inst = self.stack[-1]
        if isinstance(inst, PlainObject):
            if isinstance(state, dict):
                inst.attributes.update({str(key): value for key, value in state.items()})  # type: ignore[union-attr]
            elif isinstance(state, tuple):
                inst.items = state
        elif not isinstance(inst, (dict, Opaque)):
            self._refuse(f"the state of a {type(inst).__name__}")

    def _made(self, what: Any, arguments: Any) -> Any:
        if not isinstance(what, Known) or not isinstance(arguments, tuple):
            self._refuse(f"a call of {getattr(what, 'name', type(what).__name__)}")
        return what.make(*arguments)

    def _refuse(self, what: str) -> NoReturn:
        raise CheckpointError(
            f"the pickle asks for {what}", where=self.where,
            why="only tensors and plain containers are read; nothing in a checkpoint is executed",
            fix="save a state_dict alone: torch.save(model.state_dict(), path), or as safetensors",
        )  # fmt: skip

    dispatch |= {pickle.REDUCE[0]: load_reduce, pickle.NEWOBJ[0]: load_newobj, pickle.BUILD[0]: load_build}


_STORAGES: dict[str, str | None] = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "UntypedStorage": None,
}  # fmt: skip


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> TensorRef:
    dtype = storage.dtype if isinstance(storage, StorageRef) else None
    return _ref(storage, dtype, offset, size, stride)


def _tensor_v3(storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *_: Any) -> Any:
    return _ref(storage, dtype.name if isinstance(dtype, DType) else None, offset, size, stride)


def _ref(storage: Any, dtype: str | None, offset: Any, size: Any, stride: Any) -> TensorRef:
    numbers = (offset, *size, *stride)
    if not isinstance(storage, StorageRef) or dtype is None or len(size) != len(stride):
        raise ValueError("a tensor without storage, format or strides")
    if any(not isinstance(n, int) or isinstance(n, bool) or not 0 <= n < 1 << 62 for n in numbers) or len(size) > 64:
        raise ValueError(f"a tensor of shape {size} and strides {stride}"[:200])
    return TensorRef(storage=storage, dtype=dtype, offset=offset, shape=tuple(size), strides=tuple(stride))


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _from_type(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    if not isinstance(function, Known) or not function.name.startswith("torch._utils._rebuild"):
        raise ValueError("a tensor of a class of its own")
    return function.make(*arguments)


def _bag(name: str) -> Known:
    return Known(name=name, make=lambda *_: PlainObject(name))


def _opaque(name: str) -> Known:
    return Known(name=name, make=lambda *_: Opaque(kind=name))


def _plain(name: str, kind: type) -> Known:
    return Known(name=name, make=lambda *given: kind(*given[:1]) if all(map(_is_container, given)) else kind())


def _is_container(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset, dict))


_DCP = "torch.distributed.checkpoint."
_ENTRIES = (
    Known(name="torch._utils._rebuild_tensor", make=_tensor),
    Known(name="torch._utils._rebuild_tensor_v2", make=_tensor),
    Known(name="torch._utils._rebuild_tensor_v3", make=_tensor_v3),
    Known(name="torch._utils._rebuild_parameter", make=_parameter),
    Known(name="torch._utils._rebuild_parameter_with_state", make=_parameter),
    Known(name="torch._tensor._rebuild_from_type_v2", make=_from_type),
    Known(name="torch.Size", make=lambda *given: tuple(given[0]) if given else ()),
    Known(name="torch.nn.parameter.Parameter", make=_parameter),
    *(_opaque(f"torch.{name}") for name in ("device", "strided", "Generator")),
    *(_opaque(f"torch.serialization.{name}") for name in ("_get_layout",)),
    *(_plain(f"{module}.{name}", kind)
      for module in ("builtins", "__builtin__")
      for name, kind in (("set", set), ("frozenset", frozenset), ("list", list), ("tuple", tuple), ("dict", dict))),
    *(_opaque(f"{module}.{name}") for module in ("builtins", "__builtin__")
      for name in ("complex", "bytearray", "slice", "range")),
    _plain("collections.OrderedDict", dict),
    Known(name="collections.defaultdict", make=lambda *_: {}),
    Known(name="collections.Counter", make=lambda *_: {}),
    *(_opaque(name) for name in (
        "_codecs.encode", "_io.BytesIO", "pathlib.PosixPath", "pathlib._local.PosixPath", "pathlib.WindowsPath",
        "pathlib.Path", "numpy.dtype", "numpy.ndarray", "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray._reconstruct", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar",
        "datetime.timedelta", "datetime.datetime", "signal.Signals", "random.Random", "uuid.UUID",
    )),
    _bag("argparse.Namespace"), _bag("types.SimpleNamespace"),
    *(_bag(f"{_DCP}metadata.{name}") for name in (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    )),
    _bag(f"{_DCP}filesystem._StorageInfo"), _bag(f"{_DCP}filesystem._StoragePrefix"),
    _bag("torch.distributed._shard.sharded_tensor.metadata.TensorProperties"),
    _bag("torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING"),
)  # fmt: skip
_TABLE: dict[str, Known] = {entry.name: entry for entry in _ENTRIES}
