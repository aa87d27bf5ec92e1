"""From a trigger to evidence: replay under the op trace, walk to the origin, adjudicate, find samples, try cures."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hypocenter.diagnose.evidence import Evidence, OpFacts, Rerun, TensorFacts, Trigger
from hypocenter.diagnose.origin import Blame, blame, killed_infinities, selector_of
from hypocenter.nouns import Remedy
from hypocenter.replay import adjudicate, cures, probes, samples
from hypocenter.replay.engine import Replayed, Replayer, ReplayImpossible
from hypocenter.tap.names import NameMap
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.tape import Microbatch
from hypocenter.tap.tracer import Node, OpTracer

Observer = Callable[[Node, Sequence[torch.Tensor]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A failed step: everything the investigation starts from."""

    id: str
    trigger: Trigger
    step: int
    rank: int
    world_size: int
    microbatches: tuple[Microbatch, ...]
    bad_params: tuple[str, ...]  # gradients not finite when first seen this step
    n_params: int
    loss: float | None
    loss_scale: float | None
    healthy_steps: int
    clip: str = ""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Evidence, and the live objects the bundle is made from."""

    evidence: Evidence
    node: Node | None = None
    tracer: OpTracer | None = None
    microbatch: Microbatch | None = None


class Investigator:
    """Investigates the failures of one run."""

    def __init__(self, replayer: Replayer, names: NameMap, *, after_trace: Callable[[], None] = lambda: None) -> None:
        self._replayer = replayer
        self._names = names
        self._sums: dict[str, torch.Tensor] = {}  # float64 gradients of suspects, over the finite micro-batches
        self._after_trace = after_trace  # told when the traced replay is over and cures begin

    def investigate(
        self, case: Case, observer: Callable[[Microbatch], Observer | None], live: OpTracer | None = None
    ) -> Outcome:
        """Replay the step's micro-batches until the failure shows again, and explain it.

        Args:
            case: the failure.
            observer: makes, per micro-batch, what is told of every traced op (to record rows), or None.
            live: the trace of the step itself, when it was traced while it ran.
        """
        base = self.base(case)
        named = self._names.parameters()
        self._sums.clear()
        if live is not None and case.microbatches:
            outcome = self._from_live(case, base, named, live)
            if outcome is not None:
                return outcome
        why_not = "no micro-batch was recorded in this step"
        n_replayed = 0
        for microbatch in sorted(case.microbatches, key=_suspicion):
            try:
                outcome = self._one(case, base, microbatch, named, observer(microbatch))
            except ReplayImpossible as error:
                why_not = str(error)
                outcome = self._forward_only(case, base, microbatch, named, observer(microbatch), why_not)
                if outcome is not None:
                    return outcome
                continue
            except Exception as error:  # the user's own code runs here: anything may come out of it
                why_not = f"the replay raised {type(error).__name__}: {str(error)[:200]}"
                continue
            n_replayed += 1
            if outcome is not None and outcome.evidence.reproduced:
                return outcome
        if n_replayed and case.trigger == "nonfinite-grad" and n_replayed == len(case.microbatches) > 1:
            return Outcome(evidence=self._accumulated(case, base, named))
        if n_replayed:
            why_not = (
                "on this rank the step is finite: the value came from another rank"
                if case.world_size > 1
                else "the replay was finite: the failure depends on something that is not part of the step's inputs"
            )
        return Outcome(evidence=replace(base, replayed=n_replayed > 0, why_not=why_not))

    def base(self, case: Case) -> Evidence:
        """What is known before any replay."""
        return Evidence(
            id=case.id,
            trigger=case.trigger,
            step=case.step,
            rank=case.rank,
            world_size=case.world_size,
            loss=case.loss if case.loss is not None and abs(case.loss) < float("inf") else None,
            loss_scale=case.loss_scale,
            bad_params=case.bad_params,
            n_params=case.n_params,
            clip=case.clip,
            healthy_steps=case.healthy_steps,
            forward_finite=_loss_finite(case),
        )

    def _from_live(self, case: Case, base: Evidence, named: list[tuple[str, Any]], live: OpTracer) -> Outcome | None:
        values = [v for m in case.microbatches for v in m.values if not _finite(v)]
        grads = [p.grad for _, p in named if p.grad is not None and not _finite(p.grad)]
        found = blame(live.trace(), [live.edge_to(t) for t in (values or grads)])
        if found is None:
            return None
        base = replace(base, traced_live=True, microbatch=next(iter(sorted(case.microbatches, key=_suspicion))).number)
        return self._evidence(case, base, None, named, live, found)

    def _forward_only(
        self,
        case: Case,
        base: Evidence,
        microbatch: Microbatch,
        named: list[tuple[str, Any]],
        observe: Observer | None,
        why_not: str,
    ) -> Outcome | None:
        """The loss cannot be computed again, but the module calls can: enough if one of them gave non-finite values."""
        if case.trigger != "nonfinite-loss":
            return None
        tracer = self._tracer(microbatch, named, observe)
        try:
            outputs = self._replayer.run_modules(microbatch, mode=tracer, context=tracer.context)
        except Exception:
            return None
        finally:
            self._after_trace()
        found = blame(tracer.trace(), [tracer.edge_to(t) for t in outputs if t.is_floating_point() and not _finite(t)])
        if found is None:
            return None
        base = replace(
            base,
            microbatch=microbatch.number,
            replayed=True,
            notes=(*base.notes, f"only the module calls were replayed: {why_not}"),
        )
        return self._evidence(case, base, None, named, tracer, found)

    def _add_up(self, case: Case, named: list[tuple[str, Any]], replayed: Replayed) -> None:
        for (name, _), grad in zip(named, replayed.grads, strict=True):
            if grad is not None and name in case.bad_params and grad.layout == torch.strided:
                total = self._sums.get(name)
                self._sums[name] = grad.double() if total is None else total + grad.double()

    def _accumulated(self, case: Case, base: Evidence, named: list[tuple[str, Any]]) -> Evidence:
        """Every micro-batch is finite: what does the sum of their gradients come to in float64?"""
        dtypes = {name: p.grad.dtype for name, p in named if p.grad is not None}
        name, largest = max(
            ((name, float(total.abs().max())) for name, total in self._sums.items()), key=lambda x: x[1], default=("", 0.0)
        )
        return replace(
            base,
            replayed=True,
            reproduced=bool(name),
            bad_params=(name, *(p for p in case.bad_params if p != name)) if name else case.bad_params,
            why_not="" if name else "every micro-batch is finite on its own: the sum of their gradients is not",
            limit=_limit(dtypes[name]) if name in dtypes else None,
            float64=Rerun(ran=bool(name), finite=True, absmax=largest),
            facts={"accumulated": float(len(case.microbatches))},
        )

    def _one(
        self,
        case: Case,
        base: Evidence,
        microbatch: Microbatch,
        named: list[tuple[str, Any]],
        observe: Observer | None,
    ) -> Outcome | None:
        parameters = [p for _, p in named]
        tracer = self._tracer(microbatch, named, observe)
        try:
            replayed = self._replayer.run(microbatch, parameters, mode=tracer, context=tracer.context)
        finally:
            self._after_trace()
        return self._explain(case, base, microbatch, named, tracer, replayed)

    def _tracer(self, microbatch: Microbatch, named: list[tuple[str, Any]], observe: Observer | None) -> OpTracer:
        by_storage = {p.untyped_storage()._cdata: ("param", name) for name, p in named if hasattr(p, "untyped_storage")}
        for name, buffer in self._names.buffers():
            by_storage.setdefault(buffer.untyped_storage()._cdata, ("buffer", name))
        for name, tensor in self._replayer.named_inputs(microbatch):
            with contextlib.suppress(RuntimeError, NotImplementedError):
                by_storage.setdefault(tensor.untyped_storage()._cdata, ("batch", name.removeprefix("batch")))

        def leaf(tensor: torch.Tensor) -> tuple[str, str]:
            try:
                return by_storage.get(tensor.untyped_storage()._cdata, ("external", ""))
            except (RuntimeError, NotImplementedError):
                return "external", ""

        return OpTracer(OpContext(self._names.module_name), leaf, observe=observe)

    def _explain(
        self,
        case: Case,
        base: Evidence,
        microbatch: Microbatch,
        named: list[tuple[str, Any]],
        tracer: OpTracer,
        replayed: Replayed,
    ) -> Outcome | None:
        trace = tracer.trace()
        bad = tuple(
            name for (name, _), g in zip(named, replayed.grads, strict=True) if g is not None and not _finite(g)
        )
        loss_finite = all(_finite(v) for v in replayed.values)
        base = replace(
            base,
            microbatch=microbatch.number,
            replayed=True,
            replayed_bad_params=bad,
            forward_finite=loss_finite,
        )
        if case.trigger in ("dead-grad", "nonfinite-activation"):
            return self._hidden(case, base, microbatch, named, tracer)
        if loss_finite and not bad:
            self._add_up(case, named, replayed)
            return None
        if not loss_finite:
            targets = [tracer.edge_to(v) for v in replayed.values]
        else:
            targets = [tracer.edge_to(g) for g in replayed.grads if g is not None and not _finite(g)]
        found = blame(trace, targets)
        if found is None:
            return Outcome(
                evidence=replace(base, why_not="the trace lost the way from the bad value back to its origin")
            )
        return self._evidence(case, base, microbatch, named, tracer, found)

    def _hidden(
        self, case: Case, base: Evidence, microbatch: Microbatch, named: list[tuple[str, Any]], tracer: OpTracer
    ) -> Outcome | None:
        """An overflow that never reached the loss: only what float64 proves, and what somebody hid, is reported."""
        for killed in killed_infinities(tracer.trace()):
            node = tracer.nodes[killed.origin]
            float64 = adjudicate.rerun_float64(node)
            if not (float64.ran and float64.finite) or (case.trigger == "dead-grad" and not killed.zeroed):
                continue
            found = Blame(origin=killed.origin, path=(killed.origin, killed.killer))
            base = replace(base, killed_by=adjudicate.op_facts(tracer, tracer.nodes[killed.killer], detailed=False))
            base = replace(base, facts={**base.facts, "zeroed": float(killed.zeroed)})
            return self._evidence(case, base, microbatch, named, tracer, found)
        return None

    def _evidence(
        self,
        case: Case,
        base: Evidence,
        microbatch: Microbatch | None,
        named: list[tuple[str, Any]],
        tracer: OpTracer,
        found: Blame,
    ) -> Outcome:
        def brief(index: int | None) -> OpFacts | None:
            return None if index is None else adjudicate.op_facts(tracer, tracer.nodes[index], detailed=False)

        evidence = replace(
            base,
            reproduced=True,
            nan_maker=brief(found.nan_maker) if found.nan_maker != found.origin else None,
            multiplier_zero=brief(found.zero_factor),
            path=tuple(fact for i in _thin(found.path) if (fact := brief(i)) is not None),
            killed=tuple(fact for i in found.killed[:6] if (fact := brief(i)) is not None),
        )
        node: Node | None = None
        mask: torch.Tensor | None = None
        if found.leaf is not None:
            leaf = tracer.leaves[found.leaf]
            node = tracer.nodes[found.zero_factor] if found.zero_factor is not None else None
            node = node or (tracer.nodes[found.path[0]] if found.path else None)
            facts = adjudicate.tensor_facts(leaf.tensor, leaf.name) if leaf.tensor is not None else None
            if leaf.tensor is not None:
                mask = ~torch.isfinite(leaf.tensor)
                evidence = replace(
                    evidence,
                    leaf=facts,
                    leaf_kind=leaf.kind if leaf.kind in ("batch", "param", "buffer") else "external",  # type: ignore[arg-type]
                    chips=adjudicate.chips(leaf.tensor),
                    indices=tuple(tuple(int(i) for i in row) for row in mask.nonzero()[:16].tolist()),
                    index_shape=tuple(leaf.tensor.shape),
                )
            if node is not None:
                evidence = replace(evidence, origin=adjudicate.op_facts(tracer, node))
        elif found.origin is not None:
            node = tracer.nodes[found.origin]
            evidence = replace(evidence, origin=adjudicate.op_facts(tracer, node), **self._adjudicated(node))
            output = adjudicate.bad_output(node)
            if output is not None:
                mask = adjudicate.bad_mask(output, node)
                evidence = replace(
                    evidence,
                    chips=adjudicate.chips(output),
                    indices=adjudicate.indices(output, node),
                    index_shape=tuple(output.shape),
                    limit=_limit(output.dtype),
                )
        selector = selector_of(tracer.trace(), found.origin if found.origin is not None else -1 - (found.leaf or 0))
        if evidence.forward_finite and selector is not None:
            evidence = replace(evidence, facts={**evidence.facts, "selected_by": tracer.nodes[selector].traced.op})
        origin_phase = node.place.phase if node is not None else "forward"
        evidence = replace(
            evidence,
            killed_in_forward=evidence.forward_finite
            and case.trigger in ("nonfinite-grad", "skipped-step")
            and (origin_phase in ("forward", "loss") or found.leaf is not None),
            upstream_grad_zero=probes.upstream_grad_zero(node) if node is not None and found.leaf is None else None,
            facts={**evidence.facts, **(probes.facts(node, tracer) if node is not None else {})},
        )
        if microbatch is not None:  # without a whole replay nothing can be tried
            evidence = self._samples(case, evidence, microbatch, named, mask, found)
            evidence = replace(evidence, remedies=self._remedies(case, evidence, microbatch, named))
        return Outcome(evidence=evidence, node=node, tracer=tracer, microbatch=microbatch)

    def _adjudicated(self, node: Node) -> dict[str, Rerun]:
        on_device = any(t.device.type != "cpu" for t in node.outputs)
        return {
            "float64": adjudicate.rerun_float64(node),
            "again": adjudicate.rerun_same(node),
            "cpu": adjudicate.rerun_same(node, "cpu") if on_device else Rerun(why_not="it ran on the CPU"),
        }

    def _samples(
        self,
        case: Case,
        evidence: Evidence,
        microbatch: Microbatch,
        named: list[tuple[str, Any]],
        mask: torch.Tensor | None,
        found: Blame,
    ) -> Evidence:
        n_rows = samples.batch_size(self._replayer.batch_tensors(microbatch))
        if (
            n_rows < 1
            or evidence.leaf_kind in ("param", "buffer")
            or case.trigger in ("dead-grad", "nonfinite-activation")
        ):
            if mask is not None and n_rows > 0 and evidence.leaf_kind not in ("param", "buffer"):
                return replace(evidence, samples=samples.rows_of(mask, n_rows), n_samples=n_rows)
            return replace(evidence, n_samples=n_rows)
        parameters = [p for _, p in named]

        def finite_with(rows: torch.Tensor) -> bool:
            return self._replayer.run(microbatch, parameters, rows=(n_rows, rows)).finite

        rows = samples.rows_of(mask, n_rows) if mask is not None else ()
        started = time.perf_counter()
        check = samples.confirmed(rows, n_rows, finite_with) if 0 < len(rows) < n_rows else None
        took_s = time.perf_counter() - started
        if check is None or not check:
            with contextlib.suppress(Exception):
                if took_s * n_rows < 20.0:  # seconds the user's job may wait for an answer it did not ask for by flag
                    alone = samples.rows_alone(n_rows, finite_with)
                    if 0 < len(alone) < n_rows and samples.confirmed(alone, n_rows, finite_with):
                        return replace(evidence, samples=alone, samples_confirmed=True, n_samples=n_rows)
        return replace(evidence, samples=rows, samples_confirmed=check, n_samples=n_rows)

    def _remedies(
        self, case: Case, evidence: Evidence, microbatch: Microbatch, named: list[tuple[str, Any]]
    ) -> tuple[Remedy, ...]:
        parameters = [p for _, p in named]

        def traced(**how: Any) -> tuple[OpTracer, Replayed]:
            tracer = self._tracer(microbatch, named, None)
            return tracer, self._replayer.run(microbatch, parameters, mode=tracer, context=tracer.context, **how)

        def shows_no_more(**how: Any) -> bool:
            try:
                if case.trigger in ("dead-grad", "nonfinite-activation"):
                    tracer, replayed = traced(**how)
                    return replayed.finite and not any(
                        adjudicate.rerun_float64(tracer.nodes[k.origin]).finite
                        for k in killed_infinities(tracer.trace())
                    )
                return self._replayer.run(microbatch, parameters, **how).finite
            except Exception:  # a cure that does not even run (dtype mismatch downstream) is no cure
                return False

        def next_site(around: contextlib.AbstractContextManager[Any]) -> str | None:
            try:
                tracer, replayed = traced(around=around)
            except Exception:
                return None
            targets = [tracer.edge_to(t) for t in (*replayed.values, *replayed.grads) if t is not None]
            found = blame(tracer.trace(), targets)
            return None if found is None or found.origin is None else tracer.nodes[found.origin].place.site

        return cures.propose(
            evidence,
            self._module,
            cured=lambda around: shows_no_more(around=around),
            cured_at=lambda file, line: shows_no_more(float32_at=(file, line)),
            next_site=next_site,
        )

    def _module(self, path: str) -> torch.nn.Module | None:
        for root in self._names.roots():
            for module in root.modules():
                if self._names.module_name(module) == path:
                    return module
        return None


def _suspicion(microbatch: Microbatch) -> tuple[bool, int]:
    """Micro-batches whose loss was not finite first, then in order."""
    return all(_finite(v) for v in microbatch.values), microbatch.number


def _loss_finite(case: Case) -> bool:
    return all(_finite(v) for m in case.microbatches for v in m.values)


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor.detach()).all())


def _limit(dtype: torch.dtype) -> float | None:
    return float(torch.finfo(dtype).max) if dtype.is_floating_point else None


def _thin(path: tuple[int, ...]) -> tuple[int, ...]:
    """At most 12 ops of a path: the first eight and the last four."""
    return path if len(path) <= 12 else path[:8] + path[-4:]


__all__ = ["Case", "Investigator", "Outcome", "TensorFacts"]
