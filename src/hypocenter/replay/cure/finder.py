"""The cure of a failed step: the smallest float32 island, verified by replay, and what else would have helped."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hypocenter.diagnose.evidence import Alternative, Cure, Evidence
from hypocenter.nouns import Source
from hypocenter.replay.case import HIDDEN
from hypocenter.replay.cure.islands import Found, IslandSearch, Module
from hypocenter.replay.cure.patch import api_lines, change_of
from hypocenter.replay.cure.rehearsal import MOST_ELEMENTS, Around, Rehearsal, Rehearsed
from hypocenter.replay.cure.search import OutOfBudget
from hypocenter.replay.remedies.casts import NARROWER, Caster
from hypocenter.replay.remedies.float64_reference import Float64Reference
from hypocenter.replay.remedies.fp32_island import advice
from hypocenter.replay.remedies.islands import island as lasting_island
from hypocenter.replay.remedies.kinds import REMEDIES, RemedyKind
from hypocenter.replay.remedies.op_forward import is_function
from hypocenter.replay.remedies.wide_forward import autocast_off
from hypocenter.summary.reducers.torch_float64 import has_float64
from hypocenter.tap.source import user_frame
from hypocenter.tap.tracer import OpTracer

LOW_PRECISION = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
LOSS = "loss"  # the site of operations outside every module


def is_low_precision(tracer: OpTracer) -> bool:
    """Return whether any operation gave a low-precision result: otherwise float32 islands change nothing."""
    return any(dtype in LOW_PRECISION for node in tracer.nodes for dtype in node.dtypes)


class Cures:
    """Search the cure of one failed step.

    Args:
        rehearsal: of the step.
        module: module path -> module.
        sites: paths of modules that own operations, in execution order.
        roots: the models.
    """

    def __init__(
        self, rehearsal: Rehearsal, module: Module, sites: Sequence[str], roots: Sequence[torch.nn.Module]
    ) -> None:
        self._rehearsal, self._module, self._roots = rehearsal, module, roots
        self._search = IslandSearch(rehearsal, module, sites)

    def find(self, evidence: Evidence, scales: Sequence[float | None]) -> Cure:
        """Search a cure, verify it, and compare it with other remedies.

        Args:
            evidence: with origin and adjudication filled in.
            scales: loss scales at which the step should be finite, wanted ones first.
        """
        try:
            return self._sought(evidence, scales)
        except OutOfBudget:
            return self._spent()

    def _sought(self, evidence: Evidence, scales: Sequence[float | None]) -> Cure:
        origin = evidence.origin
        if origin is None:
            return self._without_cure("cannot-tell", "the trace does not say where the failure starts")
        if self._module(origin.site) is None and origin.source is not None:  # the user's own code, outside modules
            return self._in_loss_code(origin.source, scales)
        if not evidence.float64.finite and not self._is_about_precision(scales):
            return self._nothing_helps()
        found = self._search.find(origin.site, scales)
        if found is not None:
            return self._found(found, evidence)
        return self._spent() if self._search.is_out_of_budget else self._nothing_helps()

    def _spent(self) -> Cure:
        n = self._rehearsal.n_replays
        return self._without_cure("cannot-tell", f"the search ended after {n} replays: its budget was spent")

    def again(self, before: Cure, evidence: Evidence) -> Cure | None:
        """Return the cure of an earlier step with the same origin, if it cures this one too; else None. One replay."""
        self._rehearsal.scale = before.scale
        try:
            if _is_line(before.targets) or not self._search.fixes(before.targets, before.cast_back):
                return None
        except OutOfBudget:
            return self._spent()
        return replace(before, replays=self._rehearsal.n_replays, seconds=self._rehearsal.seconds)

    def _is_about_precision(self, scales: Sequence[float | None]) -> bool:
        for scale in scales:
            self._rehearsal.scale = scale
            if any(self._search.fixes_all(cast_back) for cast_back in (True, False)):
                return True
        return False

    def _nothing_helps(self) -> Cure:
        if error := self._search.error_of_all:
            return self._without_cure("cannot-tell", f"the replays with all modules in float32 raised {error}")
        n = self._search.n_candidates
        return self._without_cure("no-cure", f"with all {n} modules in float32 the step is not finite either")

    def _in_loss_code(self, source: Source, scales: Sequence[float | None]) -> Cure:
        """Search a cure in code between the model and `backward`, in no module: the line itself is the target."""
        for scale in scales:
            self._rehearsal.scale = scale
            if self._rehearsal.finite(float32_at=(source.file, source.line)):
                target = f"{source.file}:{source.line}"
                cure = replace(self._base("cured"), targets=(target,), verified=True, minimal=True, lines=(source,))
                change = change_of(cure, self._module, self._rehearsal, self._roots)
                return replace(cure, patch=change.diff, patch_note=change.words if change.diff else "")
        return self._without_cure("no-cure", f"with line {source.line} in float32 the step is not finite either")

    def _base(self, status: str) -> Cure:
        rehearsal = self._rehearsal
        return Cure(
            status=status,  # type: ignore[arg-type]
            replays=rehearsal.n_replays,
            seconds=rehearsal.seconds,
            n_candidates=self._search.n_candidates,
            n_params=len(rehearsal.scene.parameters),
            n_microbatches=len(rehearsal.microbatches),
            scale=rehearsal.scale,
        )

    def _without_cure(self, status: str, why: str) -> Cure:
        return replace(self._base(status), why=(why,))

    def _found(self, found: Found, evidence: Evidence) -> Cure:
        self._rehearsal.scale = found.scale
        cure = replace(
            self._base("cured"),
            targets=found.targets,
            verified=True,
            cast_back=found.cast_back,
            minimal=found.is_minimal,
            api=api_lines(found.targets, cast_back=found.cast_back, module=self._module, roots=self._roots),
        )
        source = evidence.origin.source if evidence.origin is not None else None
        if source is not None and len(found.targets) == 1:
            lines = (source,) if self._rehearsal.holds(lambda: lines_in_float32([source])) else ()
            cure = replace(cure, lines=lines, ops=self._sufficient_ops(found, source))
        change = change_of(cure, self._module, self._rehearsal, self._roots)
        return replace(
            cure,
            patch=change.diff,
            patch_note=change.words,
            patch_verified=change.verified,
            alternatives=self._compared(cure, evidence),
        )

    def _sufficient_ops(self, found: Found, source: Source) -> tuple[str, ...]:
        """Return functions of the blamed line that suffice alone, as targets of `hypocenter.island`: `attn:matmul`."""
        module, cast_back = self._module(found.targets[0]), found.cast_back
        if module is None:
            return ()
        return tuple(
            f"{found.targets[0]}:{name}"
            for name in functions_in(source.text)
            if self._rehearsal.holds(_op_island(module, name, cast_back))
        )

    def _compared(self, cure: Cure, evidence: Evidence) -> tuple[Alternative, ...]:
        if self._rehearsal.is_spent:
            return ()
        modules = [module for path in cure.targets if (module := self._module(path)) is not None]
        comparison = Comparison(self._rehearsal, self._roots, evidence)
        words = advice(", ".join(target or "the model" for target in cure.targets), cast_back=cure.cast_back)
        around = self._search.island(cure.targets, cure.cast_back)
        chosen = comparison.of(cure.action, cure.targets, around, words, modules=modules)
        smaller: list[Alternative] = []
        for op in cure.ops[:1]:
            name = op.rpartition(":")[2]
            words = f"run only {name} of {cure.targets[0] or 'the model'} in float32"
            smaller.append(comparison.of("fp32-op", (op,), _op_island(modules[0], name, cure.cast_back), words))
        return (chosen, *smaller, *comparison.with_kinds(cure.targets, modules))


def _op_island(module: torch.nn.Module, name: str, cast_back: bool) -> Around:
    return lambda: lasting_island(module, [f":{name}"], cast_back=cast_back)


def functions_in(text: str) -> list[str]:
    """Return the torch functions that a line of source calls, as `hypocenter.island` names them; `@` is matmul."""
    called = re.findall(r"\b([a-zA-Z_]\w*)\s*\(", text)
    names = [name for name in called if is_function(name)]
    return list(dict.fromkeys([*names, *(["matmul"] if "@" in text else [])]))


def _is_line(targets: Sequence[str]) -> bool:
    return any(re.search(r":\d+$", target) for target in targets)


@contextlib.contextmanager
def lines_in_float32(lines: Collection[Source]) -> Generator[None, None, None]:
    """Give operations written in these lines their operands in float32, autocast off, within this block.

    Results stay float32, as they do in a statement of which every operand was cast with `.float()`.
    """
    with _Widened(frozenset((source.file, source.line) for source in lines)):
        yield


class _Widened(TorchFunctionMode):
    def __init__(self, places: frozenset[tuple[str, int]]) -> None:
        super().__init__()
        self._places = places

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        frame = user_frame(sys._getframe(1))
        if frame is None or (frame.f_code.co_filename, frame.f_lineno) not in self._places:
            return func(*args, **kwargs)
        caster = Caster(torch.float32, NARROWER[torch.float32])
        return autocast_off(torch.float32, func, caster.cast(args), caster.cast(kwargs))


# Ways to make the failed step finite, side by side: what each costs, how far its gradients are from float64.

SHORT_S = 0.5  # a replay that takes less is timed three times: the first pays for caches


class Comparison:
    """Measure alternatives to a cure on one step.

    Args:
        rehearsal: of the step, at the loss scale that the cure was found with.
        roots: the models, for the float64 replay.
        evidence: what is known about the failure.
    """

    def __init__(self, rehearsal: Rehearsal, roots: Sequence[torch.nn.Module], evidence: Evidence) -> None:
        self._rehearsal, self._evidence = rehearsal, evidence
        self._scale, self._roots = rehearsal.scale, roots
        self._plain_s = min(rehearsal.rehearse().seconds for _ in range(3))  # the first pays for caches
        n_elements = sum(parameter.numel() for parameter in rehearsal.scene.parameters)
        self._exact: Rehearsed | None = None
        kinds = {parameter.device.type for parameter in rehearsal.scene.parameters}
        if n_elements <= MOST_ELEMENTS and all(map(has_float64, kinds)):
            with Float64Reference(roots, leaves=True) as reference:
                exact = rehearsal.rehearse(parameters=reference.parameters(rehearsal.scene.parameters))
            self._exact = exact if exact.finite else None

    def of(
        self, action: str, targets: Sequence[str], around: Around, text: str, *, scale: float | None = None,
        modules: Sequence[torch.nn.Module] = (),
    ) -> Alternative:  # fmt: skip
        """Replay the step with one alternative, and return how it did.

        Args:
            scale: loss scale of the replay; None: the one that the cure was found with.
            modules: that it changes, for their share of the parameters.
        """
        self._rehearsal.scale = scale or self._scale
        try:
            found = self._rehearsal.rehearse(around)
            again_s = [self._rehearsal.rehearse(around).seconds for _ in range(2)] if found.seconds < SHORT_S else []
            finite = self._rehearsal.holds(around) if self._rehearsal.scene.case.trigger in HIDDEN else found.finite
        finally:
            self._rehearsal.scale = self._scale
        return Alternative(
            action=action,
            targets=tuple(targets),
            verified=finite,
            why_not=found.why_not or ("" if finite else "loss or gradients are not finite with it"),
            cost=min([found.seconds, *again_s]) / self._plain_s if finite and self._plain_s else None,
            share=parameter_share(self._roots, modules) if modules else None,
            error=self._error(found) if finite else None,
            text=text,
        )

    def with_kinds(self, targets: Sequence[str], modules: Sequence[torch.nn.Module]) -> list[Alternative]:
        """Try every other remedy that could apply, each on the same modules, the preferred ones first."""
        tried: list[Alternative] = []
        for kind in REMEDIES.in_order():
            if kind.name == "fp32-island" or self._rehearsal.is_spent or not kind.applies(self._evidence):
                continue
            if kind.takes_modules:
                around, words = (lambda k=kind: k.around(modules)), kind.text(targets)
                tried.append(self.of(kind.name, targets, around, words, modules=modules))
            elif self._scale is not None:
                tried.append(self._largest_finite_scale(kind, self._scale))
        return tried

    def _largest_finite_scale(self, kind: RemedyKind, scale: float) -> Alternative:
        """Find the largest loss scale on offer that is finite, by bisection: below a finite scale all are."""
        offered = [scale * factor for factor in kind.seed_scales(scale)]
        low, high = 0, len(offered)
        while low < high:
            middle = (low + high) // 2
            self._rehearsal.scale = offered[middle]
            low, high = (low, middle) if self._rehearsal.holds() else (middle + 1, high)
        self._rehearsal.scale = self._scale
        if self._rehearsal.was_late:
            return Alternative(action=kind.name, targets=(), why_not=self._rehearsal.error, text=kind.text(()))
        if low == len(offered):
            why_not = f"not finite at any loss scale down to {offered[-1]:g}" if offered else "there is no lower scale"
            return Alternative(action=kind.name, targets=(), why_not=why_not, text=kind.text(()))
        target = f"{offered[low]:g}"
        return self.of(kind.name, (target,), contextlib.nullcontext, kind.text(()), scale=offered[low])

    def _error(self, found: Rehearsed) -> float | None:
        """Return ||g - g64|| / ||g64|| over all parameters; None where float64 gives no finite gradients."""
        if self._exact is None:
            return None
        pairs = [
            (g, exact) for g, exact in zip(found.gradients, self._exact.gradients, strict=True) if exact is not None
        ]
        difference = sum(float(((exact if g is None else exact - g) ** 2).sum()) for g, exact in pairs)
        size = sum(float((exact**2).sum()) for _, exact in pairs)
        return math.sqrt(difference / size) if size > 0 and math.isfinite(difference) else None


def parameter_share(roots: Iterable[nn.Module], modules: Iterable[nn.Module]) -> float:
    """Return the share of all models' parameter elements that these modules have, 0 to 1; shared ones count once.

    Where matrix products dominate, which use each weight once per token, this is the share of the arithmetic too:
    time grows by about share x (float32's time per product / low precision's - 1).
    """
    whole = {id(p): p.numel() for root in roots for p in root.parameters()}
    part = {id(p): p.numel() for module in modules for p in module.parameters()}
    return sum(part.values()) / max(1, sum(whole.values()))


class KeptForBackward:
    """Context manager: counts the bytes that autograd keeps for backward of what is computed in the block.

    Each storage counts once; parameters and what a forward was given count like everything else. What a compiled
    region or a custom C++ function keeps for itself is not seen.
    """

    def __init__(self) -> None:
        self.n_bytes = 0
        self._seen: dict[int, int] = {}  # storage address -> bytes; a freed one may be used again, so the larger counts
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def __enter__(self) -> KeptForBackward:
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)
        self.n_bytes = sum(self._seen.values())

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._seen[storage.data_ptr()] = max(self._seen.get(storage.data_ptr(), 0), storage.nbytes())
        return tensor


def _unpack(tensor: Tensor) -> Tensor:
    return tensor
