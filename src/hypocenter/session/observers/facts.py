"""facts.json: what the program is made of, written at the first update of each optimizer."""

from __future__ import annotations

import os
import platform
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hypocenter.nouns import Place
from hypocenter.record.facts_file import (
    Facts,
    GroupFacts,
    ModuleFacts,
    OptimizerFacts,
    TensorFacts,
    read_facts,
    write_facts,
)
from hypocenter.record.layout import rank_directory
from hypocenter.session.claims import claims
from hypocenter.session.facts.plain import NOT_PLAIN, members, place_of, plain
from hypocenter.session.facts.settings_of import take_settings
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.tap.flat_parameters import is_flat, originals
from hypocenter.tap.names import NameMap, class_name, wrapped_attribute
from hypocenter.tap.state import Ambient, accelerator_type
from hypocenter.unwarned import unwarned

MAX_OPTIMIZERS = 16  # updates of new ones at which all is read again; a program may make one per step
_MODEL_GROUPS = ("bit16_groups", "fp16_groups")  # DeepSpeed: the model's own parameters, group by group
_MASTER = "main_param"  # Megatron-Core: on the model's parameter, the float32 copy that is trained
_ENVIRONMENT = (
    "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NCCL_ALGO", "NCCL_PROTO",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR", "CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
    "HCCL_DETERMINISTIC", "LCCL_DETERMINISTIC", "ASCEND_LAUNCH_BLOCKING", "PYTORCH_TUNABLEOP_ENABLED", "HCCL_ALGO",
    "HCCL_OP_EXPANSION_MODE", "CLOSE_MATMUL_K_SHIFT", "ATB_MATMUL_SHUFFLE_K_ENABLE", "INF_NAN_MODE_ENABLE",
    "INF_NAN_MODE_FORCE_DISABLE", "TORCH_NPU_USE_COMPATIBLE_IMPL", "TORCH_NPU_LEGACY_IMPL_LIST",
)  # fmt: skip


class FactsKeeper(Observer):
    """Reads modules, optimizers and settings once; holds none of them."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizers: list[OptimizerFacts] = []

    def at_rest(self) -> Iterable[str]:
        """Each optimizer is noted once."""
        return ("before_update",) if self._optimizers else ()

    def before_update(self, update: Update) -> None:
        """Write the facts of a complete program: its models were called, and its optimizer has its parameters."""
        context = self.context
        if context.directory is None or update.optimizer in self._seen or len(self._optimizers) >= MAX_OPTIMIZERS:
            return
        if not claims(context.directory, "torch"):
            return
        self._seen.add(update.optimizer)
        self._optimizers.append(optimizer_facts(update.optimizer, context.names))
        place = context.place()
        event = next((e for e in context.tape.events if e.module is not None), None)
        facts = Facts(
            modules=module_facts(context.names, tp=len(place.groups.get("tp", ())) or 1),
            optimizers=tuple(self._optimizers),
            settings=settings(
                place,
                event.ambient if event is not None else None,
                n_microbatches=len(update.microbatches),
                loss_scale=update.scaled.state.scale if update.scaled is not None else None,
            ),
        )
        folder = rank_directory(context.directory, context.rank()[0])
        folder.mkdir(parents=True, exist_ok=True)
        known = read_facts(folder) if len(self._optimizers) > 1 else None
        write_facts(folder, replace(facts, calls=known.calls) if known is not None else facts)


def module_facts(names: NameMap, *, tp: int = 1) -> tuple[ModuleFacts, ...]:
    """Return the facts of all modules in the models' own order, under their first names; wrappers are left out.

    Args:
        tp: ranks that share a parameter which Megatron marks as split: shapes are those of the whole.
    """
    flat = _FlatShapes(names)
    seen_configs: set[int] = set()
    found: list[ModuleFacts] = []
    for path, module in names.modules():
        if wrapped_attribute(module):
            continue
        attributes, functions = take_settings(members(module), seen_configs)
        attributes.update({key: None for key, value in module._parameters.items() if value is None})
        found.append(
            ModuleFacts(
                path=path,
                kind=class_name(module),
                where=_where(module),
                parameters={**_tensors(module._parameters, flat, tp), **flat.below(path)},
                buffers=_tensors(module._buffers, flat, tp),
                attributes=attributes,
                functions=functions,
                training=bool(members(module).get("training", True)),
            )
        )
    return tuple(found)


def _where(module: nn.Module) -> str:
    """Return where a module's class defines `forward`, not what accelerate and others put over it in one module."""
    for kind in type(module).__mro__:
        if "forward" in vars(kind):
            return "" if kind is nn.Module else place_of(vars(kind)["forward"])
    return ""


def _tensors(things: Mapping[str, Tensor | None], flat: _FlatShapes, tp: int) -> dict[str, TensorFacts]:
    return {
        key: TensorFacts(
            shape=flat.shape_of(thing) or _logical_shape(thing, tp), dtype=_dtype(thing), trained=thing.requires_grad
        )
        for key, thing in things.items()
        if thing is not None and not is_flat(thing)
    }


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _logical_shape(tensor: Tensor, tp: int) -> tuple[int, ...]:
    """Return the shape of the whole tensor: a DTensor tells it itself, ZeRO-3 and Megatron leave a mark."""
    marks = members(tensor)
    whole = marks.get("ds_shape")
    shape = list(whole if whole is not None else tensor.shape)
    dim = marks.get("partition_dim")
    if marks.get("tensor_model_parallel") is True and type(dim) is int and 0 <= dim < len(shape):
        shape[dim] *= tp
    return tuple(int(size) for size in shape)


class _FlatShapes:
    """The user's parameters inside of the flat ones of FSDP1, which tell what they hold."""

    def __init__(self, names: NameMap) -> None:
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._below: dict[str, dict[str, TensorFacts]] = {}
        for root in names.roots():
            for module in root.modules():
                self._note(names, members(module).get("_handle"))

    def _note(self, names: NameMap, handle: Any) -> None:
        flat = members(handle).get("flat_param") if handle is not None else None
        if not isinstance(flat, Tensor):
            return
        shapes, params = members(flat).get("_shapes", ()), members(flat).get("_params")
        if params is not None:  # use_orig_params: views, which hold only what is on this rank
            self._shapes.update({id(p): tuple(shape) for p, shape in zip(params, shapes, strict=True)})
        elif is_flat(flat):
            for _, original in originals(flat):
                name = (names.param_names(original) or ("",))[0]
                owner, _, key = name.rpartition(".")
                fact = TensorFacts(shape=tuple(original.shape), dtype=_dtype(flat), trained=flat.requires_grad)
                self._below.setdefault(owner, {})[key] = fact

    def shape_of(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the user's shape of a view into a flat parameter; () for another tensor."""
        return self._shapes.get(id(tensor), ())

    def below(self, path: str) -> dict[str, TensorFacts]:
        """Return the parameters of the module at this path that lie in a flat one."""
        return self._below.get(path, {})


def optimizer_facts(optimizer: Any, names: NameMap) -> OptimizerFacts:
    """Return the facts of a torch optimizer, or what wraps one; parameters outside all models get their place."""
    groups: Sequence[Any] = getattr(optimizer, "param_groups", None) or ()
    owned = _model_groups(optimizer, len(groups))
    masters = {id(m): p for _, p in names.parameters() if isinstance(m := members(p).get(_MASTER), Tensor)}
    return OptimizerFacts(
        kind=_kind(optimizer),
        groups=tuple(
            GroupFacts(
                options=_options(group),
                parameters=tuple(_names(owned[i] if owned else group.get("params", ()), i, names, masters)),
            )
            for i, group in enumerate(groups)
            if isinstance(group, Mapping)
        ),
    )


def _kind(optimizer: Any) -> str:
    """Return the class of the innermost torch optimizer, whose rule trains; the wrapper's if there is none inside."""
    inner, n_layers = optimizer, 0
    while not isinstance(inner, torch.optim.Optimizer) or "optimizer" in members(inner):
        below = members(inner).get("optimizer")
        if below is None or n_layers > 8:  # a wrapper that wraps itself would be an endless loop
            break
        inner, n_layers = below, n_layers + 1
    return type(inner if isinstance(inner, torch.optim.Optimizer) else optimizer).__name__


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    kept = {str(key): plain(value) for key, value in group.items() if key != "params" and type(key) is str}
    return {key: value for key, value in kept.items() if value is not NOT_PLAIN}


def _model_groups(optimizer: Any, n_groups: int) -> Sequence[Any]:
    for key in _MODEL_GROUPS:
        found = members(optimizer).get(key)
        if isinstance(found, (list, tuple)) and len(found) == n_groups:
            return found
    return ()


def _names(parameters: Any, group: int, names: NameMap, masters: Mapping[int, Tensor]) -> Iterator[str]:
    for index, parameter in enumerate(parameters):
        thing = masters.get(id(parameter), parameter)
        for each in [o for _, o in originals(thing)] if is_flat(thing) else [thing]:
            found = names.param_names(each)
            yield found[0] if found else f"param_groups[{group}].params[{index}]"


_READ: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.__version__,
    "python": platform.python_version,
    "default_dtype": torch.get_default_dtype,
    "num_threads": torch.get_num_threads,
    "num_interop_threads": torch.get_num_interop_threads,
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "tf32_matmul": lambda: _tf32(torch.backends.cuda.matmul),
    "tf32_cudnn": lambda: _tf32(torch.backends.cudnn),
    "fp16_reduced_precision_reduction": lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    "bf16_reduced_precision_reduction": lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    "cudnn_enabled": lambda: torch.backends.cudnn.enabled,
    "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
    "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
    "mkldnn": lambda: torch._C._get_mkldnn_enabled(),
    "sdpa_flash": torch.backends.cuda.flash_sdp_enabled,
    "sdpa_mem_efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "sdpa_math": torch.backends.cuda.math_sdp_enabled,
    "sdpa_cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "device": lambda: accelerator_type() or "cpu",
    "npu_hf32_matmul": lambda: _npu().matmul.allow_hf32,
    "npu_hf32_conv": lambda: _npu().conv.allow_hf32,
    "npu_inf_nan": lambda: _npu().utils.is_support_inf_nan(),  # False: overflows saturate
    "torch_npu": lambda: sys.modules["torch_npu"].__version__,
    "cann": lambda: _npu().utils.get_cann_version(),
    "cuda": lambda: torch.version.cuda,
    "cudnn": lambda: torch.backends.cudnn.version() if torch.version.cuda else None,
}


def settings(place: Place, ambient: Ambient | None, *, n_microbatches: int, loss_scale: float | None) -> dict[str, Any]:
    """Return settings by name; what this torch does not know is left out.

    Args:
        ambient: in which the outermost module was called; None when no call was seen.
    """
    found: dict[str, Any] = {}
    with unwarned():  # torch renames these switches, and says so to who reads the old ones
        for name, read in _READ.items():
            try:
                value = plain(read())
            except Exception:  # another version of torch
                continue
            if value is not NOT_PLAIN:
                found[name] = value
    found["autocast"] = None
    for kind, enabled, dtype in ambient.autocast if ambient is not None else ():
        if enabled:
            found |= {"autocast": str(dtype).removeprefix("torch."), "autocast_device": kind}
    found |= {f"env.{name}": os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    found["world_size"] = place.world_size
    found |= {axis: len(ranks) for axis, ranks in place.groups.items()}
    return found | {"accumulation_steps": n_microbatches, "loss_scale": loss_scale}


def _npu() -> Any:
    """Return what torch_npu adds to torch. Raises AttributeError without it."""
    module: Any = torch
    return module.npu


def _tf32(backend: Any) -> bool:
    """Return whether float32 is multiplied with 10 bits of mantissa (TF32)."""
    if hasattr(backend, "fp32_precision"):  # torch 2.9: the older switch refuses to be read when this one was set
        return backend.fp32_precision == "tf32"
    return bool(backend.allow_tf32)
