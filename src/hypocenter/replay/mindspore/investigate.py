"""From a failed step of MindSpore to evidence: replay under the op trace, walk to the origin, try what can be tried."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore._c_expression import MixedPrecisionType  # pyright: ignore[reportMissingImports]

from hypocenter.diagnose.evidence import Cure, Evidence, Rerun
from hypocenter.diagnose.origin import Blame, blame
from hypocenter.formats import format_of
from hypocenter.nouns import Remedy
from hypocenter.operator_names import canonical
from hypocenter.replay import samples, step_by_step
from hypocenter.replay.cure.search import OutOfBudget, smallest
from hypocenter.replay.host_values import Held, bad_mask
from hypocenter.replay.host_witness import HostWitness
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.measured import measured
from hypocenter.replay.mindspore import adjudicate
from hypocenter.replay.mindspore.adjudicate import operands
from hypocenter.replay.mindspore.engine import Replayed, Replayer
from hypocenter.replay.mindspore.host import address, flat, held, is_finite, is_floating, values
from hypocenter.replay.mindspore.places import Places
from hypocenter.replay.mindspore.trace import VIEWS, OpTracer
from hypocenter.replay.node import Node
from hypocenter.replay.step_by_step import TracedReplay
from hypocenter.replay.witness import Reruns
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.tape import GradCall

_UPSTREAM = 4  # operators between a clamp and the logarithm it protects
MAX_ROUNDS = 8
PATIENCE_S = 20.0  # seconds the user's job may wait
_LOW = ("float16", "bfloat16")


class Investigator:
    """Investigate the failures of one run.

    Args:
        replayer: of the run's steps.
        names: the user's names.
    """

    def __init__(self, replayer: Replayer, names: NameMap) -> None:
        self._replayer, self._names = replayer, names

    def investigate(
        self, base: Evidence, microbatches: Sequence[GradCall], *, seed_scale: float = 1.0, cure: bool = True
    ) -> Evidence:
        """Replay the step's micro-batches until the failure shows again, and explain it.

        Args:
            base: what is known before any replay.
            microbatches: of the step.
            seed_scale: multiplies what backward starts from: 1 / loss scale when the scale has no part in it.
            cure: search one.
        """
        traced = functools.partial(self._traced, seed_scale)
        evidence, done = step_by_step.investigate(base, microbatches, traced, seed_scale=seed_scale)
        if done is None or not cure or not evidence.reproduced:
            return evidence
        try:
            found = search(evidence, done.tracer, self._replayer, self._names, microbatches, seed_scale=seed_scale)
        except Exception as error:  # what was found out is worth more than a cure
            why = f"the search raised {type(error).__name__}: {step_by_step.first_line(error)}"
            found = Cure(status="cannot-tell", why=(why,))
        evidence = replace(evidence, cure=found)
        return replace(evidence, remedies=remedies(evidence))

    def _traced(self, seed_scale: float, call: GradCall) -> TracedReplay:
        """Trace what was compiled operator by operator; if the failure does not show then, as it was."""
        with contextlib.suppress(_OnlyCompiled):
            try:
                tracer, replayed = traced(self._replayer, self._names, call, seed_scale=seed_scale, eager=True)
            except ReplayImpossible:
                raise
            except Exception as error:
                raise _OnlyCompiled from error
            if not replayed.finite:
                return self._done(seed_scale, call, tracer, replayed)
        return self._done(seed_scale, call, *traced(self._replayer, self._names, call, seed_scale=seed_scale))

    def _done(self, seed_scale: float, call: GradCall, tracer: OpTracer, replayed: Replayed) -> TracedReplay:
        pairs = zip(call.weights, replayed.grads, strict=False)
        return TracedReplay(
            tracer=tracer,
            has_bad_values=not all(map(is_finite, replayed.values)),
            bad_params=tuple(self._names.label(weight) for weight, gradient in pairs if not is_finite(gradient)),
            blamed=lambda: blamed(tracer, call, replayed),
            witness=lambda: Traced(tracer),
            inputs=[tensor for _, tensor in self._replayer.named_inputs(call)],
            is_finite_with=lambda rows: self._replayer.run(call, rows=rows, seed_scale=seed_scale).finite,
            broken=tracer.broken,
            notes=(_DREW,) if replayed.drew else (),
        )


class _OnlyCompiled(Exception):
    """Raised for a function that only the compiler understands."""


_DREW = "dropout dropped other values in the replay than in the run: MindSpore cannot draw the same again"


class Traced(HostWitness):
    """A traced micro-batch of MindSpore."""

    def __init__(self, tracer: OpTracer) -> None:
        super().__init__(tracer.nodes, tracer.leaves)
        self._tracer = tracer

    def operands(self, node: Node) -> list[tuple[str, Held]]:
        """Return (name, values) of the tensors that were captured of an operator's arguments."""
        pairs = zip(node.names, adjudicate.operands(node), strict=False)
        return [(name, held(tensor)) for name, value in pairs for tensor in flat(value)]

    def rerun(self, index: int) -> Reruns:
        """Execute the operator again; not on the CPU, because a MindSpore process computes on one device."""
        node = self.nodes[index]
        return Reruns(
            float64=adjudicate.rerun_float64(node),
            again=adjudicate.rerun_same(node),
            cpu=Rerun(why_not="a MindSpore process computes on one device"),
        )

    def measured(self, index: int) -> dict[str, float | str]:
        """Return named numbers about its operands."""
        return facts(self.nodes[index], self._tracer)


def facts(node: Node, tracer: OpTracer) -> dict[str, float | str]:
    """Return named numbers about its operands, and the clamp that fed a log."""
    base, output = canonical(node.traced.op), node.bad_output
    floating = [values(t) for t in flat(operands(node)) if is_floating(t)]
    if not floating:
        return {}
    given = [
        values(v) if isinstance(v, ms.Tensor) else v if isinstance(v, (int, float)) else None for v in operands(node)
    ]
    axis = next((found for v in operands(node) if (found := _axis(v)) is not None), -1)
    found = measured(base, floating, given, None if output is None else bad_mask(output.array), axis)
    if base.startswith("log") or base in ("div", "reciprocal", "pow"):
        found.update(_clamp_upstream(node, tracer))
    return found


def _axis(value: Any) -> int | None:
    if isinstance(value, (tuple, list)) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _clamp_upstream(node: Node, tracer: OpTracer) -> dict[str, float | str]:
    """Describe a clamp a few ops upstream, with its bounds and what they round to in the tensor's format."""
    frontier = [edge.producer for edge in node.traced.inputs]
    steps = 0
    while frontier and steps < _UPSTREAM:
        reached: list[int] = []
        for producer in frontier:
            if producer < 0:
                continue
            upstream = tracer.nodes[producer]
            steps += upstream.traced.op not in VIEWS
            bounds = [v for v in upstream.scalars.values() if isinstance(v, (int, float))]
            dtype = upstream.dtypes[0]
            form = format_of(dtype)
            if canonical(upstream.traced.op) in ("clamp", "maximum") and bounds and form is not None:
                bound = float(bounds[-1])
                rounded = ms.Tensor(np.array(bound, np.float64)).astype(getattr(ms, dtype))
                return {
                    "clamp_bound": bound,
                    "clamp_bound_rounded": float(values(rounded)),
                    "clamp_dtype": dtype,
                    "clamp_eps": form.eps,
                }
            reached.extend(edge.producer for edge in upstream.traced.inputs)
        frontier = reached
        steps += 1
    return {}


@contextlib.contextmanager
def island(cell: Any) -> Generator[None, None, None]:
    """Let a cell and all in it compute in float32 in this block, as after `cell.to_float(ms.float32)`."""
    before: list[tuple[Any, Any]] = [(each, each.mixed_precision_type) for _, each in cell.cells_and_names()]
    try:
        for each, _ in before:
            each.mixed_precision_type = MixedPrecisionType.FP32
        yield
    finally:
        for each, kind in before:
            each.mixed_precision_type = kind


def search(
    evidence: Evidence,
    tracer: OpTracer,
    replayer: Replayer,
    names: NameMap,
    microbatches: Sequence[GradCall],
    *,
    seed_scale: float,
) -> Cure | None:
    """Return the smallest set of cells whose float32 makes every micro-batch of the step finite.

    Args:
        evidence: with origin or leaf filled in.
        tracer: of the replay that the blame is from.
        replayer: of the step.
        names: the user's names.
        microbatches: of the step.
        seed_scale: multiplies what backward starts from.
    """
    if evidence.leaf is not None:
        return Cure(status="no-cure", why=(f"the value was not finite before any operation: {evidence.leaf.name}",))
    if evidence.origin is None:
        return None
    if not any(dtype in _LOW for node in tracer.nodes for dtype in node.dtypes):
        return Cure(status="no-cure", why=("every operation of the step was in float32 or wider already",))
    sites = dict.fromkeys(node.place.site for node in tracer.nodes)
    return _Search(evidence, replayer, names, microbatches, seed_scale, list(sites)).run()


class _Search:
    """Add the cell where the step fails next, until it does not, then leave out what was not needed.

    Where that leads nowhere, all cells that the step ran are searched, children before parents.
    """

    def __init__(
        self,
        evidence: Evidence,
        replayer: Replayer,
        names: NameMap,
        microbatches: Sequence[GradCall],
        seed_scale: float,
        sites: Sequence[str],
    ) -> None:
        self._evidence, self._replayer, self._names = evidence, replayer, names
        self._microbatches, self._seed_scale = microbatches, seed_scale
        self._cells = dict(names.cells())
        self._sites = [site for site in sites if site in self._cells]
        self._known: dict[tuple[str, ...], tuple[bool, str | None]] = {}
        self._n_replays = 0
        self._started = time.perf_counter()

    def run(self) -> Cure:
        """Search, and return the cure or why there is none."""
        try:
            followed, tried = self._followed()
            candidates = followed or self._all_sites()
            found = smallest(candidates, lambda targets: self._fails_at(targets)[0], guess=max(1, len(followed)))
        except OutOfBudget:
            return self._no_time()
        if found.targets is not None:
            return self._found(tuple(sorted(found.targets)), is_minimal=found.is_minimal)
        if self._is_late():
            return self._no_time()
        why = f"tried in float32: {'; '.join([*tried, *candidates]) or 'no cell of the model'}. The step is not finite"
        return Cure(status="no-cure", replays=self._n_replays, why=(why,))

    def _followed(self) -> tuple[tuple[str, ...], list[str]]:
        """Return cells with which the step is finite, from the blamed operator's on, or none; and what was tried."""
        targets: tuple[str, ...] = ()
        site: str | None = self._evidence.origin.site if self._evidence.origin is not None else None
        tried: list[str] = []
        for _ in range(MAX_ROUNDS):
            wider = None if site is None else self._with(targets, site)
            if wider is None:
                break
            targets = wider
            tried.append(" and ".join(target or "the model" for target in targets))
            is_finite, site = self._fails_at(targets)
            if is_finite:
                return targets, tried
        return (), tried

    def _all_sites(self) -> Sequence[str]:
        """Return the cells of the step, children before parents; none if not even the whole model in float32 helps."""
        return () if ("",) in self._known else sorted(self._sites, key=lambda site: (not site, -site.count(".")))

    def _is_late(self) -> bool:
        return time.perf_counter() - self._started > PATIENCE_S

    def _no_time(self) -> Cure:
        return Cure(status="cannot-tell", replays=self._n_replays, why=("there was no time to try more cells",))

    def _with(self, targets: tuple[str, ...], site: str) -> tuple[str, ...] | None:
        """Add the cell at a site to the targets; if one of them holds it already, the cell around that one; else
        None."""
        held = next((target for target in targets if _is_in(site, target)), None)
        wanted = next((path for path in _outwards(site) if path in self._cells), None)
        if held is not None:
            wanted = next((path for path in _outwards(held)[1:] if path in self._cells), None)
        if wanted is None:
            return None
        return tuple(sorted({wanted, *(target for target in targets if not _is_in(target, wanted))}))

    def _fails_at(self, targets: tuple[str, ...]) -> tuple[bool, str | None]:
        """Return whether all is finite with these in float32; if not, also the cell where it fails now."""
        targets = tuple(sorted(targets))
        if targets in self._known:
            return self._known[targets]
        if self._is_late():
            raise OutOfBudget
        answer = self._known[targets] = self._replayed(targets)
        return answer

    def _replayed(self, targets: tuple[str, ...]) -> tuple[bool, str | None]:
        for call in self._microbatches:
            self._n_replays += 1
            with contextlib.ExitStack() as stack:
                for target in targets:
                    stack.enter_context(island(self._cells[target]))
                try:
                    how = {"seed_scale": self._seed_scale, "eager": True}  # a compiled cell would not see the change
                    tracer, replayed = traced(self._replayer, self._names, call, **how)
                except Exception:  # the user's own code may not take float32 there
                    return False, None
            found = None if tracer.broken else blamed(tracer, call, replayed)
            if not replayed.finite:
                place = tracer.nodes[found.origin].place if found is not None and found.origin is not None else None
                return False, place.site if place is not None else None
        return True, None

    def _found(self, targets: tuple[str, ...], *, is_minimal: bool) -> Cure:
        scale = self._evidence.loss_scale
        return Cure(
            status="cured",
            targets=targets,
            verified=True,
            cast_back=False,
            minimal=is_minimal,
            replays=self._n_replays,
            seconds=time.perf_counter() - self._started,
            n_candidates=len(self._sites),
            n_params=len(self._microbatches[0].weights),
            n_microbatches=len(self._microbatches),
            scale=None if scale is None else scale * self._seed_scale,
            api=_api(targets),
        )


def remedies(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return what to change, from what was tried; verified remedies first."""
    found: list[Remedy] = []
    cure = evidence.cure
    if cure is not None and cure.verified:
        where = ", ".join(target or "the model" for target in cure.targets)
        text = f"run {where} in float32: {cure.api}"
        found.append(Remedy(action=cure.action, targets=cure.targets, verified=True, text=text))
    left_out = samples.remedy(evidence)
    return (*found, left_out) if left_out is not None else tuple(found)


def _api(targets: tuple[str, ...]) -> str:
    if targets == ("",):
        return "net.to_float(mindspore.float32)"
    if len(targets) == 1:
        return f'dict(net.cells_and_names())["{targets[0]}"].to_float(mindspore.float32)'
    return f"for name in {list(targets)}: dict(net.cells_and_names())[name].to_float(mindspore.float32)"


def _is_in(site: str, target: str) -> bool:
    return not target or site == target or site.startswith(f"{target}.")


def _outwards(site: str) -> list[str]:
    """Return the paths of the cell and those around it: a.b.c, a.b, a, "" (the model)."""
    parts = site.split(".") if site and site != "loss" else []
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]


def traced(replayer: Replayer, names: NameMap, call: GradCall, **how: Any) -> tuple[OpTracer, Replayed]:
    """Run forward, loss and backward of a micro-batch with a tracer; `how` as in `Replayer.run`."""
    weights = {id(weight) for weight in call.weights}
    known: dict[int, tuple[str, str]] = {}
    for name, parameter in names.parameters():
        is_buffer = id(parameter) not in weights and not parameter.requires_grad
        known[address(parameter)] = ("buffer" if is_buffer else "param", name)
    for weight in call.weights:
        known.setdefault(address(weight), ("param", names.label(weight)))
    for name, tensor in replayer.named_inputs(call):
        known.setdefault(address(tensor), ("batch", name))
    known.pop(0, None)

    def leaf(tensor: Any) -> tuple[str, str]:
        return known.get(address(tensor), ("external", ""))

    tracer = OpTracer(Places(names), leaf)
    return tracer, replayer.run(call, tracer=tracer, **how)


def blamed(tracer: OpTracer, call: GradCall, replayed: Replayed) -> Blame | None:
    """Return where loss or gradients stopped being finite; None when they are, or when the trace lost the way."""
    values = [v for v in replayed.values if not is_finite(v)]
    bad = [(g, w) for w, g in zip(call.weights, replayed.grads, strict=False) if not is_finite(g)]
    targets = [tracer.edge_to(v) for v in values] or [tracer.edge_to_gradient(*b) for b in bad]
    return blame(tracer.trace(), targets)  # asking for an edge may have added to the trace
