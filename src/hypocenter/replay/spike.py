"""A step whose loss or gradient jumped, done again: which operator made it, and which samples."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hypocenter.detect.spikes import Jump
from hypocenter.diagnose.evidence import Evidence
from hypocenter.replay import adjudicate, samples
from hypocenter.replay.case import Outcome
from hypocenter.replay.engine import Replayed, Replayer
from hypocenter.replay.gains import Suspect, Usual, begins, is_amplifying, largest_read, new_operators, suspects
from hypocenter.replay.impossible import OutOfTime
from hypocenter.replay.preparation import Preparation
from hypocenter.replay.tracing import Tracing
from hypocenter.tap.gains import Sized, SizeTracer
from hypocenter.tap.gradients import norms, to_host
from hypocenter.tap.names import NameMap
from hypocenter.tap.nodes import Node
from hypocenter.tap.out_of_memory import give_back, is_out_of_memory
from hypocenter.tap.tape import Microbatch
from hypocenter.tap.tree import tensors

MOST_MICROBATCHES = 4  # that are done again
_SHARE = 0.3  # of the octaves of the jump that a place has to be above the usual: a power of it may explain the rest
_MOST_STEPS = 4.0  # that are done again for its samples; with the trace, and parameters at their usual size, it is 6
_LEAST = 2.0  # octaves, at least: what is usual is known of few steps
LOSS, GRADIENT, LOCAL = "the loss", "the gradient", "the gradient of this rank"
_OF_ALL = (LOSS, GRADIENT, LOCAL)
LEAST = 2  # healthy steps that tell which mode is usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """What jumped at a step."""

    base: Evidence  # what is known of the step without a replay
    of: str  # LOSS, GRADIENT, LOCAL (before its reduction), or the name of the parameter whose gradient it is
    jump: Jump
    scale: float  # loss scale of the step; 1.0 without one
    microbatches: Sequence[Microbatch]


class SpikeReplay:
    """Learn from healthy steps what operators usually give, and look for what is larger in a step that jumped."""

    def __init__(self, replayer: Replayer, names: NameMap, preparation: Preparation | None = None) -> None:
        self._replayer, self._names, self._preparation = replayer, names, preparation
        self._tracing = Tracing(replayer, names)
        self.usual, self.modes = Usual(), Modes()
        self.is_vectorised = True  # as far as is known: gradients of all samples come in one run

    def learn(self, microbatch: Microbatch, scale: float) -> None:
        """Take in a micro-batch of a healthy step.

        Raises:
            ReplayImpossible: with the reason.
        """
        self.usual.learn(self._tracing.healthy_sizes(microbatch, scale=scale))
        self.modes.learn(self._replayer.modes(microbatch))

    def investigate(self, spike: Spike) -> Outcome | None:
        """Find where the jump began, and in which samples; return None if neither is proven.

        Raises:
            ReplayImpossible: with the reason.
        """
        ordered = sorted(spike.microbatches, key=lambda m: -max((abs(float(v)) for v in m.values), default=0.0))
        for microbatch in ordered[:MOST_MICROBATCHES]:
            outcome = _Look(self, self._replayer, self._names, spike, microbatch).outcome()
            if outcome is not None:
                return replace_samples(outcome, self._preparation, self._replayer, microbatch)
        return None


def replace_samples(
    outcome: Outcome, preparation: Preparation | None, replayer: Replayer, microbatch: Microbatch
) -> Outcome:
    """Add the indices that a DataLoader drew for the samples."""
    evidence = outcome.evidence
    if preparation is None or not evidence.samples:
        return outcome
    indices = preparation.indices(replayer.batch_tensors(microbatch), evidence.n_samples)
    found = tuple(indices[row] for row in evidence.samples) if indices else ()
    return replace(outcome, evidence=replace(evidence, dataset_indices=found))


class _Look:
    """Look into one micro-batch of a step that jumped."""

    def __init__(
        self, owner: SpikeReplay, replayer: Replayer, names: NameMap, spike: Spike, microbatch: Microbatch
    ) -> None:
        self._owner = owner
        self._usual, self._modes, self._tracing, self._names = owner.usual, owner.modes, owner._tracing, names
        self._replayer, self._spike, self._microbatch = replayer, spike, microbatch
        self._parameters = [p for name, p in replayer.parameters(names) if spike.of in (*_OF_ALL, name)]
        self._is_of_one = spike.of not in _OF_ALL
        self._amplifying: dict[int, bool] = {}

    def outcome(self) -> Outcome | None:
        """Return what is proven of the micro-batch; None if nothing is."""
        spike = self._spike
        tracer, replayed = self._tracing.run_sized(self._microbatch, scale=spike.scale, judge=self._judge)
        if self._is_of_one:
            named = zip(self._replayer.parameters(self._names), replayed.grads, strict=True)
            replayed = replace(replayed, grads=[grad for (name, _), grad in named if name == spike.of])
        now = self._size(replayed)
        middle = math.sqrt(now * spike.jump.usual)  # between both: what is below it did not jump
        is_here = now > spike.jump.limit or len(spike.microbatches) > 1  # else another rank's, or not of these inputs
        if not (is_here and spike.jump.usual < middle < now):
            return None
        evidence = replace(
            spike.base, microbatch=self._microbatch.number, replayed=True, reproduced=True,
            facts={
                **spike.base.facts, "of": spike.of, "now": spike.jump.value, "usual": spike.jump.usual,
                "n_traces": self._usual.n,
            },
        )  # fmt: skip
        if (switched := self._switched(evidence, middle)) is not None:
            return Outcome(evidence=switched)
        suspect, proof = self._chosen(tracer, self._suspects(tracer, replayed), middle)
        rows: tuple[int, ...] = ()
        n_rows = samples.batch_size(self._replayer.batch_tensors(self._microbatch))
        node = new = None
        if suspect is not None:
            evidence, far = self._described(evidence, tracer, suspect)
            evidence = replace(evidence, facts={**evidence.facts, **proof})
            rows = _rows(far, suspect.above, n_rows) if far is not None else ()
            node = tracer.nodes[suspect.producer] if suspect.producer >= 0 else None
        elif not self._is_of_one:
            new = self._new_operation(evidence, tracer, replayed)
        del tracer, replayed

        def is_sound(kept: Sequence[int]) -> bool:
            chosen = (n_rows, torch.tensor(kept, device="cpu"))
            return self._size(self._replayer.run(self._microbatch, self._parameters, rows=chosen)) < middle

        def unsound_alone() -> Sequence[int] | None:
            return self._unsound_alone(n_rows, middle)

        evidence = samples.named(
            evidence, rows, n_rows, is_sound, most_steps=_MOST_STEPS,
            unsound_alone=unsound_alone if self._owner.is_vectorised else None,
        )  # fmt: skip
        few = len(evidence.samples) <= max(1, n_rows // samples.SMALL_PART)
        if not (evidence.samples_confirmed and few) or (self._is_of_one and evidence.origin is None):
            evidence = replace(evidence, samples=(), samples_confirmed=None)
        if evidence.origin is None and evidence.leaf is None and not evidence.samples:
            return new or (Outcome(evidence=evidence) if "lr_step" in evidence.facts else None)
        remedy = samples.remedy(evidence)
        return Outcome(evidence=replace(evidence, remedies=(remedy,) if remedy else ()), node=node)

    def _unsound_alone(self, n_rows: int, middle: float) -> Sequence[int] | None:
        """Return the rows that jump alone; None, for good, if the program cannot be vectorised."""
        try:
            losses, norms_ = self._replayer.each_alone(self._microbatch, self._parameters, n_rows)
        except OutOfTime:
            raise
        except Exception as error:  # of the user's model
            if is_out_of_memory(error):
                give_back(error)
            self._owner.is_vectorised = False
            return None
        values = [abs(value) / self._spike.scale for value in (losses if self._spike.of == LOSS else norms_)]
        between = math.sqrt(max(values) * sorted(values)[n_rows // 2])  # one row alone is often above the whole batch
        return [row for row, value in enumerate(values) if not value < max(middle, between)]

    def _switched(self, evidence: Evidence, middle: float) -> Evidence | None:
        """Return evidence of modules in another mode than usual, without which it does not jump; else None."""
        modes = self._replayer.modes(self._microbatch)
        switched = self._modes.switched(modes)
        if not switched:
            return None
        with contextlib.suppress(RuntimeError):
            without = self._size(self._replayer.run(self._microbatch, self._parameters, around=turned(switched)))
            if without < middle:
                facts: dict[str, Any] = {
                    "n_switched": len(switched),
                    "switched": self._names.module_name(switched[0]) or "the model",
                }
                others = (m for m, is_training in modes.items() if is_training is not modes[switched[0]])
                facts["n_within_others"] = len({part for m in others for part in m.modules()}.intersection(switched))
                mode = "training" if modes[switched[0]] else "evaluation"
                return replace(evidence, facts={**evidence.facts, **facts, "mode": mode, "without": without})
        return None

    def _judge(self, tracer: SizeTracer, each: Sized, node: Node) -> bool:
        """Return whether an operator may have begun it: what it read is as usual, or explains little of what it gave.

        One that no healthy step ran is kept too: where nothing else is found, it is what is new.
        """
        sized, usual = tracer.sized, self._usual
        if not begins(each, sized, usual):
            return usual.is_new(each) and node.place.phase != "backward"
        is_forward = node.place.phase != "backward"
        found = is_amplifying(each, sized, usual, is_forward=is_forward)
        self._amplifying[node.traced.index] = found
        return found

    def _suspects(self, tracer: SizeTracer, replayed: Replayed) -> Sequence[Suspect]:
        """Return the suspects of the loss, if that jumped, or else of gradients, large enough to explain it."""
        least = max(_LEAST, _SHARE * self._spike.jump.octaves)
        grads = [grad for grad in replayed.grads if grad is not None]
        for values in ([replayed.values] if self._spike.of == LOSS else []) + [grads]:
            found = [suspect for suspect in self._from(tracer, values) if suspect.in_all >= least]
            if found:
                return found
        return ()

    def _chosen(
        self, tracer: SizeTracer, found: Sequence[Suspect], middle: float
    ) -> tuple[Suspect | None, dict[str, float]]:
        """Choose the first suspect, or parameters and buffers without whose size it does not jump; add facts."""
        state = [s for s in found if s.producer < 0 and tracer.leaves[-1 - s.producer].kind in ("param", "buffer")]
        without = self._without(tracer, state)
        if without < middle:
            return state[0], {"without": without}
        return next(iter(found), None), {}

    def _without(self, tracer: SizeTracer, state: Sequence[Suspect]) -> float:
        """Return what jumped, with these parameters and buffers at their usual size; inf if that cannot be done."""
        known: dict[str, Tensor] = dict(self._names.buffers()) | dict(self._replayer.parameters(self._names))
        octaves = {known.get(tracer.leaves[-1 - s.producer].name): s.above for s in state}
        sound = {tensor: above for tensor, above in octaves.items() if tensor is not None and can_be(tensor)}
        if not sound or len(sound) < len(state):
            return math.inf
        return self._size(self._replayer.run(self._microbatch, self._parameters, around=shrunk(sound)))

    def _from(self, tracer: SizeTracer, values: Sequence[Tensor]) -> Sequence[Suspect]:
        targets = [tracer.edge_to(value).producer for value in values]
        return suspects(targets, tracer.sized, self._usual, self._amplifying)

    def _new_operation(self, evidence: Evidence, tracer: SizeTracer, replayed: Replayed) -> Outcome | None:
        """Return evidence of an operation that no healthy step had, the one that amplifies most; else None."""
        sized = tracer.sized
        new = new_operators([tracer.edge_to(value).producer for value in replayed.values], sized, self._usual)
        if not new:
            return None
        most = max(new, key=lambda producer: self._gain(sized[producer], sized))
        node, gain = tracer.nodes[most], self._gain(sized[most], sized)
        facts = {**evidence.facts, "is_new": 1.0} | ({"gain": 2.0**gain} if gain else {})
        return Outcome(evidence=replace(evidence, origin=adjudicate.op_facts(tracer, node), facts=facts), node=node)

    @staticmethod
    def _gain(each: Sized, sized: Mapping[int, Sized]) -> float:
        """Return by how many octaves it gives more than it reads; 0 where one of both sizes is not known."""
        gain = each.octave - largest_read(each, sized)
        return gain if math.isfinite(gain) else 0.0

    def _size(self, replayed: Replayed) -> float:
        """Return the size of what jumped, in this micro-batch alone, without the loss scale."""
        if self._spike.of == LOSS:
            values = [v for v in replayed.values if v.numel() == 1]
            return abs(math.fsum(to_host(values))) / self._spike.scale if values else 0.0
        grads = [grad for grad in replayed.grads if grad is not None]
        return math.hypot(*to_host(norms(grads))) / self._spike.scale if grads else 0.0

    def _described(self, evidence: Evidence, tracer: SizeTracer, suspect: Suspect) -> tuple[Evidence, Tensor | None]:
        """Return the evidence with the place, and by how many octaves each of its values is below the largest."""
        each = tracer.sized[suspect.producer]
        place = self._usual.largest(each, tracer.sized)[1]
        octave, read, known = each.octaves[place], largest_read(each, tracer.sized), self._usual.of(each, place)
        facts: dict[str, float | str] = {**evidence.facts, "above": suspect.above, "size": 2.0**octave}
        if math.isfinite(read):
            facts["gain"] = 2.0 ** (octave - read)
        if known is not None:
            facts["usual_size"] = 2.0**known.highest
            if each.n_read > 2 * known.n_read:
                facts |= {"n_read": each.n_read, "usual_n_read": known.n_read}
        n_times = tracer.sizes.n_times(each)
        if n_times > 1 and suspect.producer >= 0 and tracer.nodes[suspect.producer].place.phase != "backward":
            facts |= {"nth": tracer.nth(each), "n_times": n_times}
        if suspect.producer < 0:
            leaf, values = tracer.leaves[-1 - suspect.producer], tracer.held[suspect.producer]
            kind: Any = leaf.kind if leaf.kind in ("batch", "param", "buffer") else "external"
            facts_of = adjudicate.tensor_facts(values, leaf.name)
            return replace(evidence, leaf=facts_of, leaf_kind=kind, facts=facts), _below_largest(values)
        node = tracer.nodes[suspect.producer]
        evidence = replace(evidence, origin=adjudicate.op_facts(tracer, node))
        output = dict(zip(node.positions, node.outputs, strict=False)).get(place)
        if output is None:
            return replace(evidence, facts=facts), None
        if text := _at_largest(node, output):
            facts["at_largest"] = text
        return replace(evidence, facts=facts), _below_largest(output)


def _below_largest(values: Tensor) -> Tensor:
    octaves = values.detach().float().abs().log2()
    return octaves.max() - octaves


def _rows(below: Tensor, above: float, n_rows: int) -> tuple[int, ...]:
    """Return rows in which values are larger than usual; if these are many, those with the largest.

    Args:
        below: by how many octaves each value is below the largest.
        above: by how many octaves the largest is above the usual.
        n_rows: of the batch.
    """
    rows = samples.rows_of((below < above / 2).cpu(), n_rows)
    few = max(1, n_rows // samples.SMALL_PART)
    return rows if len(rows) <= few else samples.rows_of((below < 1.0).cpu(), n_rows)


def _at_largest(node: Node, output: Tensor) -> str:
    """Return the operands at the largest element of an element-wise result, as in "3.1, 1.2e-09"; "" for others."""
    index = int(output.abs().argmax())
    found: list[str] = []
    for _, operand in tensors((node.args, node.kwargs)):
        try:
            found.append(f"{float(operand.expand(output.shape).reshape(-1)[index]):.4g}")
        except RuntimeError:  # another shape: not element by element
            return ""
    found += [f"{value:.4g}" for value in node.scalars if type(value) is not bool]
    return ", ".join(found)


class Modes:
    """Remember in which modes modules were in healthy steps."""

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[nn.Module, list[int]] = weakref.WeakKeyDictionary()

    def learn(self, modes: Mapping[nn.Module, bool]) -> None:
        """Take in the modes of a healthy step."""
        for module, is_training in modes.items():
            self._seen.setdefault(module, [0, 0])[is_training] += 1

    def switched(self, modes: Mapping[nn.Module, bool]) -> Sequence[nn.Module]:
        """Return modules in a mode that no healthy step had them in."""
        return [m for m, is_training in modes.items() if self._is_new(self._seen.get(m), is_training)]

    @staticmethod
    def _is_new(seen: Sequence[int] | None, is_training: bool) -> bool:
        return seen is not None and not seen[is_training] and seen[not is_training] >= LEAST


@contextlib.contextmanager
def turned(modules: Sequence[nn.Module]) -> Generator[None, None, None]:
    """Put each of these modules, not those in it, in the other mode within this block."""
    flags = [(module, module.training) for module in modules]
    try:
        for module, flag in flags:
            module.training = not flag
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def can_be(tensor: Tensor) -> bool:
    """Return whether its values lie here as one plain tensor."""
    return type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and tensor.is_leaf


@contextlib.contextmanager
def shrunk(octaves: Mapping[Tensor, float]) -> Generator[None, None, None]:
    """Divide each tensor by two to so many octaves in this block; afterwards it holds the very memory of before."""
    own = [(tensor, tensor.data) for tensor in octaves]
    try:
        for tensor, values in own:
            tensor.data = values * 2.0 ** -octaves[tensor]
        yield
    finally:
        for tensor, values in own:
            tensor.data = values
