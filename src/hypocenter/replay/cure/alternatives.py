"""Ways to make the failed step finite, side by side: what each costs, how far its gradients are from float64."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from types import TracebackType

import torch
from torch import Tensor, nn

from hypocenter.diagnose.evidence import Alternative, Evidence
from hypocenter.replay.case import HIDDEN
from hypocenter.replay.cure.rehearsal import MOST_ELEMENTS, Around, Rehearsal, Rehearsed
from hypocenter.replay.remedies.float64_reference import Float64Reference
from hypocenter.replay.remedies.kinds import REMEDIES, RemedyKind
from hypocenter.summary.reducers.torch_float64 import has_float64

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
