"""What is tried on a failed micro-batch: leaving samples out, and float32 islands."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypocenter.diagnose.evidence import Cure, Evidence
from hypocenter.diagnose.numbers import HUGE
from hypocenter.replay import samples
from hypocenter.replay.case import HIDDEN, Scene
from hypocenter.replay.cure.finder import Cures, is_low_precision
from hypocenter.replay.cure.islands import sites_of
from hypocenter.replay.cure.rehearsal import Rehearsal
from hypocenter.replay.engine import Replayer
from hypocenter.replay.tracing import Tracing
from hypocenter.tap.gradients import local
from hypocenter.tap.names import NameMap
from hypocenter.tap.tape import Microbatch


class Trials:
    """Replay one micro-batch in variations."""

    def __init__(self, scene: Scene, microbatch: Microbatch, replayer: Replayer, names: NameMap) -> None:
        self._scene, self._microbatch, self._replayer, self._names = scene, microbatch, replayer, names
        self._tracing = Tracing(replayer, names)

    def samples(self, evidence: Evidence, mask: torch.Tensor | None) -> Evidence:
        """Name the batch rows; where a replay can tell, say whether the step is finite without them.

        Args:
            evidence: with leaf and origin filled in.
            mask: bad elements of the blamed tensor.
        """
        n_rows = samples.batch_size(self._replayer.batch_tensors(self._microbatch))
        if evidence.leaf is None and not self._descends_from_batch(evidence):
            return evidence
        rows = samples.rows_of(mask.cpu(), n_rows) if mask is not None else ()
        is_hidden = self._scene.case.trigger in HIDDEN  # then loss and gradients are finite with and without them

        def is_sound(kept: Sequence[int]) -> bool:
            chosen = (n_rows, torch.tensor(kept, device="cpu"))
            return self._shows_nothing(evidence, chosen) if is_hidden else self._is_sound(chosen)

        return samples.named(evidence, rows, n_rows, is_sound)

    def _descends_from_batch(self, evidence: Evidence) -> bool:
        """Return whether anything that came from outside the model went into the blamed operation."""
        tracer = self._scene.tracer
        wanted, seen = [evidence.origin.index] if evidence.origin is not None else [], set[int]()
        while wanted:
            here = wanted.pop()
            if here in seen:
                continue
            seen.add(here)
            if here < 0 and tracer.leaves[-1 - here].kind == "batch":
                return True
            if here >= 0:
                wanted += [edge.producer for edge in tracer.nodes[here].traced.inputs]
        return False

    def _is_sound(self, rows: tuple[int, torch.Tensor]) -> bool:
        """Return whether all is finite and far from running away: what explodes without these rows is no use."""
        case = self._scene.case
        done = self._replayer.run(self._microbatch, self._scene.parameters, rows=rows, seed_scale=case.seed_scale)
        most = HUGE * max(1.0, case.loss_scale or 1.0)
        return done.finite and all(_largest(t) < most for t in (*done.values, *done.grads) if t is not None)

    def _shows_nothing(self, evidence: Evidence, rows: tuple[int, torch.Tensor]) -> bool:
        """Return whether the blamed operation makes no infinity with these rows."""
        origin = evidence.origin
        tracer, _ = self._tracing.run(self._microbatch, rows=rows, seed_scale=self._scene.case.seed_scale)
        if origin is None:
            return True
        same = (
            n
            for n in tracer.nodes
            if (n.place.site, n.traced.op, n.place.phase) == (origin.site, origin.op, origin.phase)
        )
        return not any(node.traced.real for node in same)

    def cure(self, evidence: Evidence, before: Cure | None) -> Cure | None:
        """Search for the smallest float32 island; return None when none was wanted.

        Args:
            before: the cure of an earlier step that failed at the same place.
        """
        case, tracer = self._scene.case, self._scene.tracer
        if case.budget.replays < 1 or (case.trigger in HIDDEN and not evidence.float64.finite):
            return None
        if evidence.leaf is not None:
            return Cure(status="no-cure", why=(f"the value was not finite before any operation: {evidence.leaf.name}",))
        if not is_low_precision(tracer):
            return Cure(status="no-cure", why=("every operation of the step was in float32 or wider already",))
        rehearsal = Rehearsal(self._scene, self._replayer, self._tracing, case.budget)
        cures = Cures(rehearsal, self._module, sites_of(tracer), self._names.roots())
        again = cures.again(before, evidence) if before is not None else None
        return again if again is not None else cures.find(evidence, case.scales)

    def _module(self, path: str) -> torch.nn.Module | None:
        modules = (module for root in self._names.roots() for module in root.modules())
        return next((module for module in modules if self._names.module_name(module) == path), None)


def _largest(tensor: torch.Tensor) -> float:
    values = local(tensor)
    return float(values.abs().max()) if values is not None and values.numel() else 0.0
