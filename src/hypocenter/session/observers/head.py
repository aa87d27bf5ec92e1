"""Two passes over the same tokens whose heads compute in different formats, as policy and rollout do in RL.

Seen: the widest linear module of each watched outermost module, when one call under `no_grad` and a later one with
gradients, in the same step, were given bit for bit the same hidden states (same shape and order of tokens), have the
same weights up to the lower format, and give logits in different formats. Not seen: rollouts in another process or
engine, heads written as functions, batches split or shuffled in between, compiled models.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hypocenter.detect.update_rows import HEAD_GAP
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.grid import is_low, name_of
from hypocenter.session.observers.low_places import DENSE
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.observers.sampled import Deferred, sample
from hypocenter.tap.names import unwrap
from hypocenter.tap.tape import Tape
from hypocenter.tap.weakly import Ref

SMALLEST = 512  # outputs; a smaller linear module is not taken for a head over a vocabulary
ELEMENTS = 1 << 20  # log-probabilities that are compared at most
KEPT = 4  # passes without gradients that are remembered within a step
EVERY = 8  # of the later steps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    hidden: Tensor
    logits: Tensor
    weight: Tensor  # a sample


class HeadGap(Observer):
    """Listens to heads as long as some watched model holds low-precision parameters."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._heads: dict[int, weakref.ref[nn.Module]] = {}
        self._listening: list[Callable[[], None]] = []
        self._n_roots = -1
        self._n_updates = 0
        self._passes: list[_Pass] = []
        self._gaps: list[tuple[str, str, int, Tensor]] = []
        self._deferred = Deferred(context.ride)

    def attach(self) -> Callable[[], None]:
        """Return the undo, which ends the listening."""
        return self._let_go

    def _let_go(self) -> None:
        for stop in self._listening:
            stop()
        self._listening = []

    def at_rest(self) -> Iterable[str]:
        """Without a head there is nothing to compare."""
        return (
            ("before_update", "after_update")
            if not (self._heads or self._gaps or self._passes or self._deferred.waiting)
            else ()
        )

    def before_update(self, update: Update) -> None:
        """Read what the passes of this step were, as they are over."""
        if self._deferred.waiting:
            self._deferred.read()
        gaps, self._gaps, self._passes = self._gaps, [], []
        for name, dtype, n_tokens, numbers in gaps:
            kind = "ratio" if has_ratio(self.context.tape) else ""
            self._deferred.add(numbers, self._reader(name, dtype, n_tokens, kind, update.step))

    def after_update(self, update: Update) -> None:
        """Look for heads when there are new outermost modules; listen to them in the steps that are looked at."""
        self._n_updates += 1
        roots = self.context.names.roots()
        if len(roots) != self._n_roots:
            self._n_roots = len(roots)
            self._find([unwrap(root) for root in roots], any(_is_compiled(root) for root in roots))
        if self._listening:
            self._let_go()
        if self._heads and (self._n_updates < DENSE or self._n_updates % EVERY == 0):
            heads = [head for ref in self._heads.values() if (head := ref()) is not None]
            self._listening = [self.context.after_calls.add(head, self._heard) for head in heads]

    def _find(self, roots: Sequence[nn.Module], is_compiled: bool) -> None:
        if is_compiled or not any(is_low(p) for root in roots for p in root.parameters()):
            return
        for root in roots:
            heads = [m for m in root.modules() if isinstance(m, nn.Linear) and m.out_features >= SMALLEST]
            head = max(heads, key=lambda m: m.out_features, default=None)
            if head is not None:
                self._heads[id(head)] = Ref(head)

    def _heard(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not isinstance(module, nn.Linear):
            return
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
            return
        try:
            with_gradient = torch.is_grad_enabled() and isinstance(output, Tensor) and output.requires_grad
            with torch.no_grad():
                heard = _pass_of(module, args, output)
                if heard is None:
                    return
                if not with_gradient:
                    self._passes = [*self._passes[-KEPT + 1 :], heard]
                    return
                self._compare(module, heard)
        except Exception as error:  # never the user's forward
            self._passes, self._n_updates = [], DENSE + 1
            self.context.warn(f"comparing heads failed: {error!r}")

    def _compare(self, module: nn.Module, policy: _Pass) -> None:
        for rollout in self._passes:
            if rollout.logits.dtype == policy.logits.dtype or rollout.logits.shape != policy.logits.shape:
                continue
            if rollout.hidden.shape != policy.hidden.shape or rollout.weight.shape != policy.weight.shape:
                continue
            lower = min(rollout.logits.dtype, policy.logits.dtype, key=lambda dtype: dtype.itemsize)
            same = (rollout.hidden.float() == policy.hidden.float()).all()
            same &= (rollout.weight.to(lower) == policy.weight.to(lower)).all()
            gap = rollout.logits.float().log_softmax(-1) - policy.logits.float().log_softmax(-1)
            numbers = torch.stack([same.to(gap.dtype), gap.square().mean().sqrt()])
            name = self.context.names.module_name(module) or "the head"
            self._gaps.append((name, name_of(lower), policy.logits.shape[0], numbers))
            return

    def _reader(self, name: str, dtype: str, n_tokens: int, kind: str, step: int) -> Callable[[Sequence[float]], None]:
        def read(host: Sequence[float]) -> None:
            if host[0]:
                order = self.context.clock.next_order()
                self.rows.append(
                    number_row(name, HEAD_GAP, step, order, host[1], dtype=dtype, module=kind, call=n_tokens)
                )  # fmt: skip

        return read


def has_ratio(tape: Tape) -> bool:
    """Return whether loss code takes exp(a - b), a of the model and b from outside, as importance ratios do."""
    differences: set[int] = set()
    for event in tape.events:
        name = getattr(event.function, "__name__", "")
        if name in ("sub", "rsub", "subtract", "__sub__", "__rsub__"):
            given = [e.tensor for e in event.externals if not isinstance(e.tensor, nn.Parameter)]
            if event.needs and any(t.is_floating_point() and t.dim() for t in given):
                differences.update(event.slots)
        elif name in ("exp", "exp_", "expm1") and differences.intersection(event.needs):
            return True
    return False


def _pass_of(module: nn.Linear, args: tuple[Any, ...], output: Any) -> _Pass | None:
    if not args or not isinstance(args[0], Tensor) or not isinstance(output, Tensor) or output.dim() < 2:
        return None
    weight = sample(module.weight)
    if weight is None or args[0].shape[:-1] != output.shape[:-1]:
        return None
    stride = -(-output.numel() // ELEMENTS)
    hidden = args[0].detach().reshape(-1, args[0].shape[-1])[::stride]
    logits = output.detach().reshape(-1, output.shape[-1])[::stride]
    return _Pass(hidden=hidden.clone(), logits=logits.clone(), weight=weight.clone())


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
