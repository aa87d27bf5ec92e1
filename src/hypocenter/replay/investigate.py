"""From a trigger to evidence: replay under the op trace until the failure shows again, walk to its origin."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from hypocenter.diagnose.evidence import Cure, Evidence, Rerun, Share
from hypocenter.diagnose.handed_on import is_received
from hypocenter.diagnose.origin import Blame, blame, killed_infinities
from hypocenter.diagnose.rulings import masked_by
from hypocenter.nouns import Remedy
from hypocenter.replay import adjudicate, samples
from hypocenter.replay.case import HIDDEN, Case, Outcome, Scene, is_finite
from hypocenter.replay.engine import Replayed, Replayer, ReplayImpossible
from hypocenter.replay.impossible import OutOfTime
from hypocenter.replay.preparation import Preparation
from hypocenter.replay.remedies.fp32_island import advice
from hypocenter.replay.testimony import MAX_PATH, testify
from hypocenter.replay.traced import Traced
from hypocenter.replay.tracing import Observer, Tracing
from hypocenter.replay.trials import Trials
from hypocenter.summary.reducers.torch_float64 import in_float64
from hypocenter.tap.free_memory import free_bytes
from hypocenter.tap.names import NameMap
from hypocenter.tap.out_of_memory import give_back, is_out_of_memory
from hypocenter.tap.tape import Microbatch
from hypocenter.tap.tracer import OpTracer

_SATURATING = frozenset({"", "tanh", "sigmoid", "hardtanh", "erf"})  # they hide an infinity, and nobody meant to
_MAX_BACK = 8  # times that a bad value is followed from what was computed with gradients to what was not, or back
Observers = Callable[[Microbatch], Observer | None]
AT_MOST = 8  # parameters whose share is noted, those with the largest values
N_ELEMENTS = 16  # of each, at most: the first at which the gradient in the run is not finite
MOST_BYTES = 1 << 30
SHARE = 0.25  # of the memory that is free on the device


@dataclass(frozen=True, slots=True)
class _Back:
    """A trace, and where in it a bad value began."""

    tracer: OpTracer
    found: Blame


class Investigator:
    """Investigate the failures of one run.

    Args:
        replayer: of the step's tape.
        names: the user's names.
        preparation: follows what came into the step back to how it was made; None: it ends there.
        after_trace: told when a traced replay is over and cures begin.
    """

    def __init__(
        self,
        replayer: Replayer,
        names: NameMap,
        *,
        preparation: Preparation | None = None,
        after_trace: Callable[[], None] = lambda: None,
    ) -> None:
        self._replayer, self._names, self._after_trace = replayer, names, after_trace
        self._preparation = preparation
        self._tracing = Tracing(replayer, names)
        self._cures: dict[tuple[str, str], Cure] = {}  # verified, by site and op that they cured
        self._received: Outcome | None = (
            None  # of the step: a rank may hold the stage that made a value, and a later one
        )
        self._sums = WideSums()  # gradients of suspects, over the finite micro-batches

    def base(self, case: Case) -> Evidence:
        """Return the evidence as it is known before any replay."""
        return Evidence(
            id=case.id,
            trigger=case.trigger,
            step=case.step,
            rank=case.rank,
            world_size=case.world_size,
            loss=case.loss if case.loss is not None and abs(case.loss) < float("inf") else None,
            loss_scale=case.loss_scale,
            replayed_scale=None if case.loss_scale is None else case.loss_scale * case.seed_scale,
            bad_params=case.bad_params,
            n_params=case.n_params,
            clip=case.clip,
            healthy_steps=case.healthy_steps,
            forward_finite=all(is_finite(v) for m in case.microbatches for v in m.values),
        )

    def investigate(self, case: Case, observers: Observers, live: OpTracer | None = None) -> Outcome:
        """Replay the step's micro-batches until the failure shows again, and explain it.

        Args:
            case: the failure.
            observers: makes, per micro-batch, what is told of every traced op (to record rows), or None.
            live: the trace of the step itself, when it was traced while it ran.
        """
        try:
            return self._investigated(case, observers, live)
        finally:
            self._sums = WideSums()

    def _investigated(self, case: Case, observers: Observers, live: OpTracer | None) -> Outcome:
        if live is not None and case.microbatches and (outcome := self._from_live(case, live)) is not None:
            return outcome
        why_not, n_finite = "no micro-batch was recorded in this step", 0
        self._received = None
        for microbatch in sorted(case.microbatches, key=_suspicion):
            try:
                outcome = self._replayed(case, microbatch, observers(microbatch))
            except OutOfTime as error:
                why_not = f"{n_finite} of {len(case.microbatches)} micro-batches were found to be finite; then {error}"
                break
            except ReplayImpossible as error:
                why_not = str(error)
                outcome = self._modules_only(case, microbatch, observers(microbatch), why_not)
            except Exception as error:  # the user's own code runs here: anything may come out of it
                why_not = f"the replay raised {type(error).__name__}: {str(error)[:200]}"
                if is_out_of_memory(error):  # the next one would be too
                    give_back(error)
                    break
                continue
            else:
                n_finite += outcome is None
            if outcome is not None and not is_received(outcome.evidence):
                return outcome
            self._received = self._received or outcome
        return self._received or Outcome(evidence=self._inconclusive(case, why_not, n_finite))

    def of_output(self, case: Case, output: torch.Tensor) -> Outcome | None:
        """Explain a bad value that the program has computed without a loss; None if that cannot be done again."""
        done_again = self._preparation.of(output) if self._preparation is not None else None
        if done_again is None:
            return None
        tracer, made = done_again
        scene = Scene(case=case, named=self._names.parameters(), tracer=tracer, microbatch=None)
        return self._explained(scene, replace(self.base(case), replayed=True, forward_finite=False), [made])

    def _inconclusive(self, case: Case, why_not: str, n_finite: int) -> Evidence:
        base = self.base(case)
        is_all = n_finite == len(case.microbatches)
        many = is_all and case.world_size > 1 and case.seed_scale == 1.0
        own = shares(self._sums.held, self._names.parameters()) if many else ()
        is_elsewhere = all(fits(share) for share in own) if own else case.world_size > 1 and self._sums_fit()
        is_elsewhere = is_elsewhere and not self._sums.left_out
        unlike = next((why for m in case.microbatches if (why := self._replayer.unlike_the_run(m))), "")
        may_add_up = n_finite > 1 and not is_elsewhere and not ((unlike or self._sums.left_out) and self._sums_fit())
        if case.trigger in ("nonfinite-grad", "skipped-step") and is_all and may_add_up:
            return self._accumulated(case, base)
        if n_finite and is_all and unlike:
            why_not = f"the replay was finite, but {unlike}"
        elif n_finite > 1 and is_all and self._sums.left_out:
            why_not = "every micro-batch is finite alone; their gradients are too large to be added up in float64 here"
        elif n_finite and is_all:
            why_not = (
                "on this rank the step is finite: the value came from another rank"
                if case.world_size > 1
                else "the replay was finite: the failure depends on something that is not part of the step's inputs"
            )
        return replace(base, replayed=n_finite > 0, why_not=why_not, shares=own)

    def _replayed(self, case: Case, microbatch: Microbatch, observe: Observer | None) -> Outcome | None:
        """Replay and explain one micro-batch; return None if it is finite."""
        try:
            tracer, replayed = self._tracing.run(microbatch, observe, seed_scale=case.seed_scale)
        finally:
            self._after_trace()
        scene = Scene(case=case, named=self._names.parameters(), tracer=tracer, microbatch=microbatch)
        bad = [(name, g) for (name, _), g in zip(scene.named, replayed.grads, strict=True) if _is_bad(g)]
        values = [v for v in replayed.values if not is_finite(v)]
        base = replace(
            self.base(case),
            microbatch=microbatch.number,
            replayed=True,
            replayed_bad_params=tuple(name for name, _ in bad),
            forward_finite=not values,
        )
        if case.trigger in HIDDEN:
            return self._hidden(scene, base)
        if not values and not bad:
            self._add_up(scene, replayed)
            return None
        targets = values or [g for _, g in bad if g is not None]
        return self._explained(scene, base, targets) or Outcome(
            evidence=replace(base, why_not="the trace lost the way from the bad value back to its origin")
        )

    def _from_live(self, case: Case, live: OpTracer) -> Outcome | None:
        scene = Scene(case=case, named=self._names.parameters(), tracer=live, microbatch=None)
        values = [v for m in case.microbatches for v in m.values if not is_finite(v)]
        grads = [p.grad for p in scene.parameters if _is_bad(p.grad)]
        number = min(case.microbatches, key=_suspicion).number
        return self._explained(scene, replace(self.base(case), traced_live=True, microbatch=number), values or grads)

    def _modules_only(
        self, case: Case, microbatch: Microbatch, observe: Observer | None, why_not: str
    ) -> Outcome | None:
        """Replay the module calls alone if the loss cannot be computed again: enough if one of them was not finite."""
        if case.trigger != "nonfinite-loss":
            return None
        try:
            tracer, outputs = self._tracing.run_modules(microbatch, observe)
        except Exception:
            return None
        finally:
            self._after_trace()
        scene = Scene(case=case, named=self._names.parameters(), tracer=tracer, microbatch=None)
        note = f"only the module calls were replayed: {why_not}"
        base = replace(self.base(case), microbatch=microbatch.number, replayed=True, notes=(note,))
        return self._explained(scene, base, [t for t in outputs if t.is_floating_point() and not is_finite(t)])

    def _hidden(self, scene: Scene, base: Evidence) -> Outcome | None:
        """Explain an overflow that never reached the loss: only what float64 proves, and what somebody hid, counts."""
        for killed in killed_infinities(scene.tracer.trace()):
            float64 = adjudicate.rerun_float64(scene.tracer.nodes[killed.origin], self._replayer.deadline)
            if float64.ran and float64.finite and (killed.zeroed or scene.case.trigger != "dead-grad"):
                killer = adjudicate.op_facts(scene.tracer, scene.tracer.nodes[killed.killer], detailed=False)
                base = replace(base, killed_by=killer, facts={"zeroed": float(killed.zeroed)})
                return self._with(scene, base, Blame(origin=killed.origin, path=(killed.origin, killed.killer)))
        return None

    def _explained(self, scene: Scene, base: Evidence, targets: list[torch.Tensor]) -> Outcome | None:
        found = blame(scene.tracer.trace(), [scene.tracer.edge_to(t) for t in targets])
        return self._with(scene, base, found) if found is not None else None

    def _with(self, scene: Scene, base: Evidence, found: Blame) -> Outcome:
        base = self._with_unseen(scene, base, found)
        evidence, op, mask = testify(Traced(scene.tracer, self._replayer.deadline), base, found)
        back = self._followed_back(scene.tracer, found, evidence)
        if back is not None and back.found.origin is not None:
            return self._prepared(scene, base, back, evidence)
        start = back if back is not None else _Back(scene.tracer, found)
        evidence = self._with_loader(evidence, start)
        is_asked = found.leaf is not None and scene.tracer.leaves[found.leaf].asks_for_gradient
        evidence = replace(evidence, is_handed_in=is_asked and evidence.leaf_kind in ("batch", "external"))
        if scene.microbatch is not None and not (is_received(evidence) and self._received is not None):
            trials = Trials(scene, scene.microbatch, self._replayer, self._names)
            try:
                evidence = self._in_dataset(trials.samples(evidence, mask), scene.microbatch)
                evidence = replace(evidence, cure=trials.cure(evidence, self._cures.get(_place(evidence))))
            except Exception as error:  # what is known of the failure is worth more than a cure
                note = f"the search for a cure broke off ({type(error).__name__}: {str(error)[:200]})"
                evidence = replace(evidence, notes=(*evidence.notes, note))
            if evidence.cure is not None and evidence.cure.verified:
                self._cures[_place(evidence)] = evidence.cure
            evidence = replace(evidence, remedies=propose(evidence))
        return Outcome(evidence=evidence, node=None if op is None else scene.tracer.nodes[op])

    def _with_unseen(self, scene: Scene, base: Evidence, found: Blame) -> Evidence:
        """Find the line of a blamed op that was not traced, and say between which ops it ran."""
        nodes = scene.tracer.nodes
        node = nodes[found.origin] if found.origin is not None else None
        if node is None or node.unseen is None:
            return base
        if scene.microbatch is not None:
            with contextlib.suppress(
                Exception
            ):  # the user's own code runs here: then its place is that of the op before
                self._tracing.find_unseen(scene.microbatch, node, nodes, seed_scale=scene.case.seed_scale)
        after = nodes[node.unseen.after].traced.op if node.unseen.after >= 0 else ""
        return replace(base, facts={**base.facts, "unseen_after": after, "unseen_before": node.unseen.before})

    def _followed_back(self, tracer: OpTracer, found: Blame, evidence: Evidence) -> _Back | None:
        """Return what was done before the model was called, if a bad value of the batch comes from there; else None."""
        if self._preparation is None or (evidence.killed_in_forward and masked_by(evidence) not in _SATURATING):
            return None
        here, back = _Back(tracer, found), None
        for _ in range(_MAX_BACK):
            leaf = None if here.found.leaf is None else here.tracer.leaves[here.found.leaf]
            if leaf is None or leaf.tensor is None or leaf.kind not in ("batch", "external"):
                break
            if (done_again := self._preparation.of(leaf.tensor)) is None:
                break
            earlier, tensor = done_again
            before = None if is_finite(tensor) else blame(earlier.trace(), [earlier.edge_to(tensor)])
            if before is None:
                break
            here = back = _Back(earlier, before)
        return back

    def _prepared(self, scene: Scene, base: Evidence, back: _Back, evidence: Evidence) -> Outcome:
        """Explain the operation that made a bad value of the batch."""
        earlier, op, mask = testify(Traced(back.tracer, self._replayer.deadline), base, back.found)
        earlier = replace(earlier, killed_in_forward=False, path=(*earlier.path, *evidence.path)[:MAX_PATH])
        if scene.microbatch is not None:
            trials = Trials(replace(scene, tracer=back.tracer), scene.microbatch, self._replayer, self._names)
            earlier = self._in_dataset(trials.samples(earlier, mask), scene.microbatch)
            earlier = replace(
                earlier, cure=Cure(status="no-cure", why=("it was computed before the model was called",))
            )
            earlier = replace(earlier, remedies=propose(earlier))
        return Outcome(evidence=earlier, node=None if op is None else back.tracer.nodes[op])

    def _with_loader(self, evidence: Evidence, back: _Back) -> Evidence:
        leaf = None if back.found.leaf is None else back.tracer.leaves[back.found.leaf].tensor
        if leaf is None or self._preparation is None:
            return evidence
        return replace(evidence, is_from_loader=self._preparation.from_loader(leaf) is not None)

    def _in_dataset(self, evidence: Evidence, microbatch: Microbatch) -> Evidence:
        """Add the indices that a DataLoader drew for the samples."""
        if self._preparation is None or not evidence.samples:
            return evidence
        indices = self._preparation.indices(self._replayer.batch_tensors(microbatch), evidence.n_samples)
        return replace(evidence, dataset_indices=tuple(indices[row] for row in evidence.samples) if indices else ())

    def _add_up(self, scene: Scene, replayed: Replayed) -> None:
        for (name, _), grad in zip(scene.named, replayed.grads, strict=True):
            if grad is None or hasattr(grad, "to_local"):
                continue  # of a DTensor only a part is here
            if name in scene.case.bad_params and grad.layout == torch.strided:
                self._sums.add(name, grad)

    def _sums_fit(self) -> bool:
        """Return whether the known sums over this rank's micro-batches fit into the gradients' formats."""
        named = dict(self._names.parameters())
        known = [(total, run_gradient(named[name])) for name, total in self._sums.held.items() if name in named]
        return bool(known) and all(float(total.abs().max()) <= torch.finfo(grad.dtype).max for total, grad in known)

    def _accumulated(self, case: Case, base: Evidence) -> Evidence:
        """Return the evidence for micro-batches that are all finite alone: what their gradients sum to in float64."""
        dtypes = {name: p.grad.dtype for name, p in self._names.parameters() if p.grad is not None}
        largest = {name: float(total.abs().max()) for name, total in self._sums.held.items()}
        base = replace(base, replayed=True, facts={"accumulated": float(len(case.microbatches))})
        if not largest:
            return replace(base, why_not="every micro-batch is finite alone: the sum of their gradients is not")
        name = max(largest, key=lambda n: largest[n])
        return replace(
            base,
            reproduced=True,
            bad_params=(name, *(p for p in case.bad_params if p != name)),
            limit=adjudicate.limit_of(dtypes[name]) if name in dtypes else None,
            float64=Rerun(ran=True, finite=True, absmax=largest[name]),
        )


def _suspicion(microbatch: Microbatch) -> tuple[bool, int]:
    """Return a key that sorts micro-batches whose loss was not finite first, then by number."""
    return all(is_finite(v) for v in microbatch.values), microbatch.number


def _is_bad(grad: torch.Tensor | None) -> bool:
    return grad is not None and not is_finite(grad)


def _place(evidence: Evidence) -> tuple[str, str]:
    return (evidence.origin.site, evidence.origin.op) if evidence.origin is not None else ("", "")


def propose(evidence: Evidence) -> tuple[Remedy, ...]:
    """Propose remedies for what the evidence shows.

    Args:
        evidence: with samples and the search for a cure filled in.
    """
    found: list[Remedy] = []
    if evidence.cure is not None:
        found += _island(evidence, evidence.cure)
    left_out = samples.remedy(evidence)
    if left_out is not None:
        found.append(left_out)
    return tuple(sorted(found, key=lambda remedy: not remedy.verified))


def _island(evidence: Evidence, cure: Cure) -> list[Remedy]:
    if cure.verified:
        return [Remedy(action=cure.action, targets=cure.targets, verified=True, text=_in_words(cure))]
    if cure.status != "cannot-tell" or evidence.origin is None or not evidence.float64.finite:
        return []
    site = evidence.origin.site
    return [Remedy(action=cure.action, targets=(site,), verified=False, text=advice(site, cast_back=False))]


def _in_words(cure: Cure) -> str:
    if not cure.api and cure.lines:
        return f"compute line {cure.lines[0].line} in float32: cast its operands with .float()"
    where = ", ".join(target or "the model" for target in cure.targets)
    return advice(where, cast_back=cure.cast_back)


def shares(sums: Mapping[str, torch.Tensor], named: Sequence[tuple[str, torch.Tensor]]) -> tuple[Share, ...]:
    """Return what this rank had to add where the gradients of the run are not finite.

    Args:
        sums: float64 gradients of the step on this rank, over its micro-batches, by parameter.
        named: the parameters; their `.grad` is what the ranks' sum came to.
    """
    found: list[Share] = []
    for name, parameter in named:
        own, grad = sums.get(name), run_gradient(parameter)
        if own is None or grad is parameter or grad.layout != torch.strided or own.shape != grad.shape:
            continue
        bad = (~torch.isfinite(grad)).flatten().nonzero().flatten()
        at = bad[:N_ELEMENTS]
        found.append(
            Share(
                param=name,
                dtype=str(grad.dtype).removeprefix("torch."),
                limit=float(torch.finfo(grad.dtype).max),
                absmax=float(own.abs().max()),
                n=grad.numel(),
                n_nonfinite=int(bad.numel()),
                at=tuple(at.tolist()),
                values=tuple(own.flatten()[at].tolist()),
            )
        )
    return tuple(sorted(found, key=lambda share: -share.absmax)[:AT_MOST])


def run_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return the gradient that the run has accumulated: `.grad`, or Megatron-Core's `main_grad`; else the parameter."""
    grad = parameter.grad if parameter.grad is not None else getattr(parameter, "main_grad", None)
    return grad if isinstance(grad, torch.Tensor) else parameter


def fits(share: Share) -> bool:
    """Return whether this rank's own sum over its micro-batches is within the format."""
    return share.absmax <= share.limit


class WideSums:
    """Add up gradients in float64, by name.

    Attributes:
        held: the sums.
        left_out: names that there was no room for.
    """

    def __init__(self) -> None:
        self.held: dict[str, torch.Tensor] = {}
        self.left_out: set[str] = set()
        self._n_bytes = 0

    def add(self, name: str, grad: torch.Tensor) -> None:
        """Add one more gradient."""
        if name in self.left_out:
            return
        total = self.held.get(name)
        if total is not None:
            total += in_float64(grad)
            return
        if self._n_bytes + 8 * grad.numel() > min(MOST_BYTES, self._n_bytes + SHARE * free_bytes(grad.device)):
            self.left_out.add(name)
            return
        self._n_bytes += 8 * grad.numel()
        self.held[name] = in_float64(grad).clone()
