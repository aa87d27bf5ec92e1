"""A step in float64 throughout: what all remedies are measured against.

Parameters and buffers are replaced by float64 twins, every argument of every torch function is cast up, what asks for a
narrower format (`.half()`, `dtype=torch.float16`) gets float64, and autocast does not touch float64. Random numbers are
drawn in the format the program asked for, so that dropout and noise are those of the run (on a GPU dropout draws in an
order that depends on the format: there a step with dropout has no exact reference).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from hypocenter.replay.remedies.casts import NARROWER
from hypocenter.tap.tree import replace_tensors

WIDE = torch.float64
NARROW = NARROWER[WIDE]
CASTS = frozenset({"half", "float", "bfloat16", "double"})  # methods that are nothing but a cast
RANDOM = frozenset(
    {"rand", "randn", "rand_like", "randn_like", "normal", "bernoulli", "poisson", "multinomial", "normal_", "uniform_",
     "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_", "trunc_normal_"}
)  # fmt: skip
LIKE = frozenset({"rand_like", "randn_like"})  # take their format from a tensor


class Float64Reference:
    """Context manager: within the block the modules, and everything else that torch computes, is float64.

    As the `around` of a replay it gives gradients of the parameters in the parameters' own format, each rounded once
    at the very end. With `leaves` they are float64:

        with Float64Reference(roots, leaves=True) as reference:
            replayed = replayer.run(microbatch, reference.parameters(parameters))

    Args:
        modules: outermost ones.
        leaves: the twins of parameters are parameters themselves instead of being computed from the originals.
    """

    def __init__(self, modules: Iterable[nn.Module], *, leaves: bool = False) -> None:
        self._modules = list(modules)
        self._leaves = leaves
        self._twins: dict[int, tuple[Tensor, Tensor]] = {}  # id of a tensor -> the tensor, its twin
        self._saved: list[tuple[dict[str, Any], str, Any]] = []
        self._hooks: list[RemovableHandle] = []
        self._mode = _EverythingWide(self._twins)

    def parameters(self, originals: Sequence[Tensor]) -> list[Tensor]:
        """Return the twins of parameters, once inside; one that is float64, or belongs to no module, is its own."""
        return [self._twins[id(p)][1] if id(p) in self._twins else p for p in originals]

    def __enter__(self) -> Float64Reference:
        for root in self._modules:
            for module in root.modules():
                for table in (module._parameters, module._buffers):
                    self._swap(table)
                if isinstance(module, nn.RNNBase):
                    weights = module._flat_weights
                    self._saved.append((module.__dict__, "_flat_weights", weights))
                    module.__dict__["_flat_weights"] = [self._twin(w) for w in weights]
            self._hooks.append(root.register_forward_pre_hook(_wide_arguments, with_kwargs=True))
        self._mode.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mode.__exit__(kind, error, trace)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for table, key, original in reversed(self._saved):
            table[key] = original
        self._saved.clear()
        self._twins.clear()

    def _swap(self, table: Any) -> None:
        for key, tensor in list(table.items()):
            if isinstance(tensor, Tensor) and tensor.dtype in NARROW:
                self._saved.append((table, key, tensor))
                table[key] = self._twin(tensor)

    def _twin(self, tensor: Any) -> Any:
        if not isinstance(tensor, Tensor) or tensor.dtype not in NARROW:
            return tensor
        if id(tensor) not in self._twins:
            with torch.enable_grad():
                twin = tensor.to(WIDE)
            if self._leaves and isinstance(tensor, nn.Parameter):
                twin = nn.Parameter(twin.detach(), requires_grad=tensor.requires_grad)
            self._twins[id(tensor)] = (tensor, twin)
        return self._twins[id(tensor)][1]


class _EverythingWide(TorchFunctionMode):
    def __init__(self, twins: dict[int, tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._twins = twins

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = kwargs if kwargs is not None else {}
        if name in ("grad", "backward"):
            with _mode_in_backward(self):
                return func(*args, **kwargs)
        if name in ("__get__", "__set__"):  # .dtype, .shape, .grad, .data
            return func(*args, **kwargs)
        args = replace_tensors(args, self._wide)
        named: dict[str, Any] = replace_tensors(kwargs, self._wide)
        if name in CASTS:
            return args[0].to(WIDE)
        if name in RANDOM:
            return self._drawn(name, func, args, named)
        result = func(*(_wide_dtype(arg) for arg in args), **{key: _wide_dtype(value) for key, value in named.items()})
        in_place = name.endswith("_") and not name.endswith("__")
        return result if in_place or not isinstance(result, Tensor) else self._wide(result)

    def _wide(self, tensor: Tensor) -> Tensor:
        return self._twins[id(tensor)][1] if id(tensor) in self._twins else _to_wide(tensor)

    def _drawn(self, name: str, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        if name in LIKE:
            return func(*args, **{**kwargs, "dtype": kwargs.get("dtype") or torch.float32}).to(WIDE)
        if not name.endswith("_"):
            result = func(*args, **kwargs)
            return self._wide(result) if isinstance(result, Tensor) else result
        target, drawn = args[0], torch.empty_like(args[0], dtype=torch.float32)
        func(drawn, *args[1:], **kwargs)
        return target.copy_(drawn)


@contextlib.contextmanager
def _mode_in_backward(mode: TorchFunctionMode) -> Generator[None, None, None]:
    """Keep the mode on in backward, where checkpoints recompute: torch takes it off for the call that is handled."""
    engine: Any = getattr(torch.autograd, "_engine_run_backward", None)
    if engine is None:  # private; without it only functions under a checkpoint are recomputed narrow
        yield
        return

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return engine(*args, **kwargs)

    torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = engine  # type: ignore[attr-defined]


def _wide_arguments(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return replace_tensors(args, _to_wide), replace_tensors(kwargs, _to_wide)


def _to_wide(tensor: Tensor) -> Tensor:
    return tensor.to(WIDE) if tensor.dtype in NARROW else tensor


def _wide_dtype(value: Any) -> Any:
    return WIDE if isinstance(value, torch.dtype) and value in NARROW else value
