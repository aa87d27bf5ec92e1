"""A failed step done again on all ranks together, because its model communicates.

Every rank replays the same micro-batches in the same order, over process groups of our own; before and after each they
agree (one MAX over a few integers) whether all can, and whether the failure has shown itself on any of them. A rank
that cannot, or does not answer in time, ends it for all. Then each looks for the origin in its own trace: the one where
a local operation made the value out of finite inputs has it; the others received it through a collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from hypocenter.diagnose.evidence import Evidence
from hypocenter.diagnose.origin import Blame, blame
from hypocenter.replay.case import Case, Outcome, is_finite
from hypocenter.replay.engine import Replayed, Replayer
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.own_groups import OwnGroups
from hypocenter.replay.testimony import testify
from hypocenter.replay.traced import Traced
from hypocenter.replay.tracing import Observer, Tracing
from hypocenter.replay.whole.model import Whole
from hypocenter.tap.names import NameMap
from hypocenter.tap.tape import Microbatch
from hypocenter.tap.tracer import OpTracer

MAX_MICROBATCHES = 64  # of a step that are replayed
Most = Callable[[Sequence[int]], "list[int] | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The means by which the ranks agree.

    Attributes:
        most: the largest of each value over all ranks; None when they could not agree.
        groups: process groups of our own for one replay, or None.
    """

    most: Most
    groups: Callable[[], OwnGroups | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What the ranks agreed on before a replay.

    Attributes:
        why_not: why there is none, or ''.
        is_same_model: whether they have as many parameters; pipeline stages hold different ones.
    """

    why_not: str
    is_same_model: bool = False


def agree(table: Table, whole: Whole, n_microbatches: int, n_parameters: int, why_not: str) -> Agreement:
    """Return whether all ranks can replay. To be called on all of them, inside `Replayer.together`.

    Args:
        why_not: why this rank cannot, or ''.
    """
    n = n_microbatches
    said = table.most([int(bool(why_not)), n, -n, n_parameters, -n_parameters, -whole.limit_bytes])
    if said is None:
        return Agreement(why_not="the ranks could not agree on a replay")
    if why := why_not or _why_not(said) or ("" if n else "no micro-batch was recorded in this step"):
        return Agreement(why_not=why)
    try:
        whole.agree(table.groups(), -said[5])
    except RuntimeError:
        return Agreement(why_not="another rank did not come to the replay")
    return Agreement(why_not="", is_same_model=said[3] == -said[4])


class Jointly:
    """Investigate a failure together with all other ranks. Every rank must call it at the same boundary."""

    def __init__(self, replayer: Replayer, names: NameMap, after_trace: Callable[[], None]) -> None:
        self._replayer, self._names, self._after_trace = replayer, names, after_trace
        self._tracing = Tracing(replayer, names)

    def investigate(
        self, case: Case, base: Evidence, observers: Callable[[Microbatch], Observer | None], table: Table
    ) -> Outcome:
        """Replay until the failure shows on some rank; return what this rank knows of it then."""
        base = replace(base, together=True)
        groups = table.groups()
        if groups is None:
            return Outcome(evidence=replace(base, why_not="the ranks could not agree on a replay"))
        try:
            with self._replayer.together(groups) as whole:
                return self._investigate(case, base, observers, replace(table, groups=lambda: groups), whole)
        finally:
            self._after_trace()
            groups.close()

    def _investigate(
        self, case: Case, base: Evidence, observers: Callable[[Microbatch], Observer | None], table: Table, whole: Whole
    ) -> Outcome:
        own_why_not = next((why for m in case.microbatches if (why := self._replayer.why_not(m))), "")
        agreement = agree(table, whole, len(case.microbatches), len(self._parameters()), own_why_not)
        if agreement.why_not:
            return Outcome(evidence=replace(base, why_not=agreement.why_not))
        is_same_model = agreement.is_same_model
        for microbatch in self._in_order(case.microbatches, table):
            outcome = self._one(
                case, replace(base, microbatch=microbatch.number), microbatch, observers, table, is_same_model
            )
            if outcome is not None:
                return outcome
        why_not = "the replay on all ranks was finite: the failure depends on something that is not part of the step"
        return Outcome(evidence=replace(base, replayed=True, why_not=why_not), was_finite=True)

    def _in_order(self, microbatches: Sequence[Microbatch], table: Table) -> list[Microbatch]:
        """Return the micro-batches, those whose loss was not finite on some rank first."""
        first = list(microbatches[:MAX_MICROBATCHES])
        bad = table.most([int(not all(is_finite(v) for v in m.values)) for m in first])
        if bad is None:
            return []
        return [m for _, m in sorted(zip(bad, first, strict=True), key=lambda pair: (-pair[0], pair[1].number))]

    def _one(
        self,
        case: Case,
        base: Evidence,
        microbatch: Microbatch,
        observers: Callable[[Microbatch], Observer | None],
        table: Table,
        is_same_model: bool,
    ) -> Outcome | None:
        """Replay one micro-batch on all ranks; return None if it was finite on every rank."""
        tracer: OpTracer | None = None
        replayed, problem = Replayed(), ""
        try:
            tracer, replayed = self._tracing.run(microbatch, observers(microbatch), seed_scale=case.seed_scale)
        except ReplayImpossible as error:
            problem = str(error)
        except Exception as error:  # the user's own code runs here: anything may come out of it
            problem = f"the replay raised {type(error).__name__}: {str(error)[:200]}"
        finally:
            self._after_trace()
        if problem and (groups := table.groups()) is not None:
            groups.close()  # who waits for this rank in one of them is told at once
        values = [v for v in replayed.values if not is_finite(v)]
        grads = [g for g in replayed.grads if g is not None and not is_finite(g)]
        bad = [int(g is not None and not is_finite(g)) for g in replayed.grads]
        bad += [0] * (len(self._parameters()) - len(bad))
        told = bad if is_same_model else []
        said = table.most([int(bool(problem)), int(bool(values or grads)), int(bool(values)), *told])
        if said is None or said[0] or tracer is None:
            why_not = problem or ("the ranks lost each other in the replay" if said is None else _OTHERS)
            return Outcome(evidence=replace(base, why_not=why_not))
        if not said[1]:
            return None
        names = tuple(name for (name, _), is_bad in zip(self._parameters(), said[3:] or bad, strict=True) if is_bad)
        base = replace(
            base,
            replayed=True,
            forward_finite=not said[2],
            replayed_bad_params=names,
            bad_params=base.bad_params or names,
        )
        return self._explained(case, base, tracer, [*(values or grads)], table)

    def _parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return self._replayer.parameters(self._names)

    def _explained(
        self, case: Case, base: Evidence, tracer: OpTracer, bad: list[torch.Tensor], table: Table
    ) -> Outcome:
        """Explain what the trace shows on this rank; nothing is tried, for that would take all ranks again."""
        targets = [tracer.edge_to(t) for t in bad] + tracer.sent()
        found = blame(tracer.trace(), targets)
        is_received = found is not None and _is_received(tracer, found)
        located = table.most([int(found is not None and not is_received)])
        if found is None:
            return Outcome(evidence=replace(base, why_not="on this rank everything that it sends is finite"))
        evidence, op, _ = testify(Traced(tracer, self._replayer.deadline), base, found)
        if is_received and located is not None and located[0]:
            return Outcome(evidence=replace(evidence, received=True, why_not="the value came from another rank"))
        return Outcome(evidence=evidence, node=None if op is None else tracer.nodes[op])


_OTHERS = "the replay failed on another rank"


def _is_received(tracer: OpTracer, found: Blame) -> bool:
    return found.origin is not None and tracer.nodes[found.origin].traced.is_collective


def _why_not(said: list[int]) -> str:
    if said[0]:
        return "the step cannot be done again on another rank"
    if said[1] != -said[2]:
        return f"the ranks have different numbers of micro-batches ({-said[2]} to {said[1]})"
    return ""
