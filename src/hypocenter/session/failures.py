"""What to do about a step that failed: replay or not, evidence and bundle, and what is a mere consequence."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hypocenter.config import Config
from hypocenter.diagnose.evidence import Evidence, Trigger
from hypocenter.nouns import Reading
from hypocenter.replay import optimizer_step
from hypocenter.replay.bundle import write_bundle
from hypocenter.replay.case import BUDGETS, HIDDEN, Case, Outcome
from hypocenter.replay.engine import Replayer
from hypocenter.replay.investigate import Investigator
from hypocenter.replay.jointly import Jointly, Table
from hypocenter.replay.preparation import Preparation
from hypocenter.session.at_scale_1 import AtScale1
from hypocenter.session.check import Check
from hypocenter.session.evidence_file import write_evidence
from hypocenter.session.live_trace import LiveTrace
from hypocenter.session.observers.culprit import last_in_model
from hypocenter.session.replay_rows import ReplayRows
from hypocenter.session.scale_memory import ScaleMemory
from hypocenter.session.scale_watch import Judged, ScaleWatch
from hypocenter.session.spike_probe import SpikeProbe
from hypocenter.session.stalls import stalling
from hypocenter.session.underflow_probe import UnderflowProbe
from hypocenter.tap.names import NameMap
from hypocenter.tap.tape import Microbatch

MAX_DEAD_REPLAYS = 3  # replays because gradients became exactly zero: often healthy (a MoE expert without tokens)
HISTORY_STEPS = 256  # per site: what a trend before the failure is read from
MAX_SCALE_REPLAYS = 2  # traced replays of steps that one layer made the scaler skip
MAX_UNUSED_LOSSES = 3  # that are looked into: a program that skips bad batches may skip many
MAX_ACTIVATION_REPLAYS = 3  # replays because a module's output was not finite while the gradients were


FAILED: tuple[Trigger, Trigger] = ("nonfinite-loss", "nonfinite-grad")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be done about one step: whether and why to investigate it, and what is known of it."""

    trigger: Trigger | None  # None: nothing
    case: Case
    check: Check
    facts: dict[str, float | str]
    asks: bool  # this rank wants a replay
    is_healthy: bool  # loss and gradients were finite here
    skip: Judged | None = None  # of which only all ranks together can tell whether the scale is its cause


class Failures:
    """Turns failed steps into evidence, at most `config.max_replays` times."""

    def __init__(
        self,
        config: Config,
        names: NameMap,
        replayer: Replayer,
        *,
        preparation: Preparation,
        folder: Callable[[], Path],
        rows: ReplayRows,
        live: LiveTrace,
        warn: Callable[[str], None],
    ) -> None:
        self._config, self._names, self._replayer = config, names, replayer
        self._folder, self._rows, self._live, self._warn = folder, rows, live, warn
        self._investigator = Investigator(replayer, names, preparation=preparation, after_trace=rows.stop)
        self._joint = Jointly(replayer, names, rows.stop)
        self._n_replays = self._n_dead = self._n_activation = 0
        self._n_scale = self._n_unused = 0
        self._scale_watch = ScaleWatch(lambda bad: last_in_model(names, bad), AtScale1(config, names, replayer))
        self._underflow = UnderflowProbe(config, names, replayer)
        self._spikes = SpikeProbe(config, names, replayer, preparation)
        self._scales = ScaleMemory()
        self._seen_finite: set[str] = set()
        self._history: dict[str, deque[tuple[int, float]]] = {}
        self._losses: dict[str, deque[tuple[int, float]]] = {}  # of healthy steps, by optimizer
        self.poisoned = False  # parameters are not finite: what follows is a consequence
        self.healthy_steps = 0
        self.written: list[Evidence] = []
        self._held: list[tuple[Evidence, Any]] | None = None  # inside `holding`
        self.kept: list[tuple[Evidence, Any]] = []  # after it

    def decide(
        self,
        check: Check,
        step: int,
        microbatches: Sequence[Microbatch],
        *,
        rank: int,
        world_size: int,
        scale: float | None,
        clip_bad: list[str] | None,
        readings: Sequence[Reading],
    ) -> Decision:
        """Decide whether this step is to be investigated, and gather what is known of it."""
        is_healthy = check.is_finite
        if scale is not None:
            self._scales.note(scale, healthy=is_healthy)
        if is_healthy:
            self._note_loss(check, step, scale)
        suspicious = bool(readings) and self._newly_nonfinite(readings)
        bad = check.bad_params if clip_bad is None else clip_bad
        judged = None if scale is None else self._judged(check, step, scale, microbatches, bad)
        trigger: Trigger | None = None
        facts: dict[str, float | str] = {}
        if not is_healthy or check.newly_dead or suspicious:
            trigger, facts = self._trigger(check, judged, suspicious)
        skip = judged if judged is not None and judged.at_scale_1 == "needs-all" and check.loss_finite else None
        if self.poisoned or self._n_replays >= self._config.max_replays:
            trigger, skip = None if trigger in FAILED else trigger, None
        is_known = trigger == "nonfinite-grad" and "finite_at_scale_1" in facts
        case = Case(
            id=f"step-{step:06d}-{trigger or FAILED[1]}",
            trigger=trigger or FAILED[1],
            step=step,
            rank=rank,
            world_size=world_size,
            microbatches=tuple(microbatches),
            bad_params=tuple(bad),
            n_params=len(check.grad_norms),
            loss=check.losses[0] if check.losses else None,
            loss_scale=scale,
            healthy_steps=self.healthy_steps,
            train_scale=self._scales.to_train_with,
            budget=BUDGETS[self._config.cure],
            clip="clip_grad_norm_" if clip_bad is not None and len(clip_bad) < len(check.bad_params) else "",
            seed_scale=1.0 / scale if is_known and scale is not None else 1.0,
        )
        asks = (trigger in FAILED or skip is not None) and self._config.replay
        return Decision(
            trigger=trigger, case=case, check=check, facts=facts, asks=asks, skip=skip, is_healthy=is_healthy
        )

    def follow(self, decision: Decision, table: Table | None) -> str:
        """Investigate what was decided on. Returns the evidence's id, or "" if there is none.

        Args:
            table: where all ranks replay together, because one of them asked for it; None: nobody did.
        """
        case, check = decision.case, decision.check
        if table is not None:
            return self._jointly(decision, table)
        if decision.is_healthy and not self.poisoned:
            lost = self._underflow.look(
                check, case.step, case.loss_scale, case.microbatches, rank=case.rank, world_size=case.world_size
            )
            if lost is not None:
                return self._write(lost, None)
            if (outcome := self._spikes.look(check, case, self._investigator.base)) is not None:
                return self._write(outcome.evidence, outcome)
        if decision.trigger is None:
            self.healthy_steps += decision.is_healthy
            return ""
        self._n_replays += 1
        found = self._investigate(case, decision.facts, tuple(self._losses.get(check.key, ())))
        if found and decision.trigger == "nonfinite-grad" and self.written[-1].reproduced:
            self._scale_watch.explained(check)
        return found

    def _jointly(self, decision: Decision, table: Table) -> str:
        """Replay on all ranks; a rank whose own step was fine writes evidence only if the bad value started there."""
        if table.most([int(decision.skip is not None), int(decision.asks and decision.skip is None)]) == [1, 0]:
            return self._skipped_jointly(decision, table)
        return self._written(decision, self._replayed_jointly(decision.case, table))

    def _replayed_jointly(self, case: Case, table: Table) -> Outcome:
        with stalling(f"all ranks do step {case.step} again to find where it broke", is_told=case.rank == 0):
            return self._joint.investigate(case, self._investigator.base(case), self._rows.observe, table)

    def _skipped_jointly(self, decision: Decision, table: Table) -> str:
        """Replay a step without its loss scale, as no loss is bad; if that is finite, replay the skip as it was."""
        case, scale = decision.case, decision.case.loss_scale
        outcome = self._replayed_jointly(replace(case, seed_scale=1.0 / scale if scale else 1.0), table)
        if not outcome.was_finite:
            if outcome.evidence.replayed:
                self._scale_watch.explained(decision.check)
                trigger = decision.trigger if decision.skip is None else FAILED[1]
                decision = replace(decision, trigger=trigger, facts={"finite_at_scale_1": 0.0})
            return self._written(decision, outcome)
        is_new = decision.skip is not None and decision.skip.is_again and self._n_scale < MAX_SCALE_REPLAYS
        wanted = is_new or (decision.skip is not None and decision.skip.is_collapse)
        if table.most([int(wanted)]) != [1]:
            return ""
        self._n_scale += is_new
        name = f"step-{case.step:06d}-skipped-step"
        outcome = self._replayed_jointly(replace(case, trigger="skipped-step", id=name), table)
        decision = replace(decision, trigger="skipped-step" if wanted else None, facts={"finite_at_scale_1": 1.0})
        return self._written(decision, outcome) if outcome.evidence.reproduced else ""

    def _written(self, decision: Decision, outcome: Outcome) -> str:
        """Write what a replay of all ranks has found, if it concerns this one; return the evidence's id, or ""."""
        self._n_replays += decision.trigger is not None
        is_here = outcome.evidence.reproduced and not outcome.evidence.received
        if self.poisoned or (decision.trigger is None and not is_here):
            return ""
        if outcome.evidence.reproduced:
            self._live.disarm()
        elif not outcome.evidence.replayed:
            self._live.arm(outcome.evidence.why_not)
        outcome.evidence = replace(outcome.evidence, facts={**outcome.evidence.facts, **decision.facts})
        return self._write(outcome.evidence, outcome)

    def _note_loss(self, check: Check, step: int, scale: float | None) -> None:
        if check.losses:
            past = self._losses.setdefault(check.key, deque(maxlen=HISTORY_STEPS))
            past.append((step, check.losses[0] / (scale or 1.0)))

    def _investigate(self, case: Case, facts: dict[str, float | str], losses: tuple[tuple[int, float], ...]) -> str:
        if not self._config.replay:
            evidence = replace(self._investigator.base(case), why_not="replay is switched off (replay = false)")
            return self._write(evidence, None)
        with stalling(f"step {case.step} is done again to find where it broke"):
            outcome = self._investigator.investigate(case, self._rows.observe, self._live.tracer)
        if case.trigger in HIDDEN and not outcome.evidence.reproduced:
            return ""  # nothing wrong was found: silence
        outcome.evidence = replace(outcome.evidence, facts={**outcome.evidence.facts, **facts})
        if case.trigger == "skipped-step":
            if not outcome.evidence.reproduced and not outcome.evidence.shares:
                return ""  # a skip that cannot be shown again accuses nobody
        elif not outcome.evidence.reproduced:
            if not (outcome.evidence.replayed and case.world_size > 1):
                self._live.arm(outcome.evidence.why_not)
        else:
            self._live.disarm()
        past = self._history.get(outcome.evidence.origin.site, ()) if outcome.evidence.origin is not None else ()
        before = tuple(point for point in past if point[0] < case.step)
        return self._write(replace(outcome.evidence, history=before, losses=losses), outcome)

    def _judged(
        self, check: Check, step: int, scale: float | None, microbatches: Sequence[Microbatch], bad: Sequence[str]
    ) -> Judged | None:
        """Judge the loss scale's part in bad gradients; None where there is no scale, or the gradients are good."""
        if scale is None or not 0.0 < scale < math.inf:  # nothing can be divided by another
            return None
        if check.bad_params:
            return self._scale_watch.skipped(check, bad, step, scale, microbatches)
        if check.loss_finite:
            self._scale_watch.went_through(check, step, scale)
        return None

    def _trigger(
        self, check: Check, judged: Judged | None, suspicious: bool
    ) -> tuple[Trigger | None, dict[str, float | str]]:
        """Return why this step is to be investigated (None: it is not), and the facts that are known already."""
        if not check.loss_finite:
            return "nonfinite-loss", {}
        if check.bad_params:
            return ("nonfinite-grad", {}) if judged is None else self._of_skip(judged)
        if check.newly_dead and self._n_dead < MAX_DEAD_REPLAYS:
            self._n_dead += 1
            return "dead-grad", {}
        if suspicious and self._n_activation < MAX_ACTIVATION_REPLAYS:
            self._n_activation += 1
            return "nonfinite-activation", {}
        return None, {}

    def _of_skip(self, judged: Judged) -> tuple[Trigger | None, dict[str, float | str]]:
        """Investigate a skip if the scale is not its cause, if it comes again and again, or if it never ends."""
        if judged.at_scale_1 == "not-finite":
            return "nonfinite-grad", {"finite_at_scale_1": 0.0}
        if judged.at_scale_1 == "finite":
            is_new = judged.is_again and self._n_scale < MAX_SCALE_REPLAYS
            if not is_new and not judged.is_collapse:
                return None, {}
            self._n_scale += is_new
            return "skipped-step", {"finite_at_scale_1": 1.0}
        if judged.is_collapse or self._live.tracer is not None:  # it was traced, because it cannot be replayed
            return "nonfinite-grad", {}
        return None, {}

    def _newly_nonfinite(self, readings: Sequence[Reading]) -> bool:
        """Return whether a module's output is not finite although it was at earlier steps."""
        found, finite = False, set[str]()
        for reading in readings:
            if reading.phase != "forward" or reading.recompute or not reading.port.startswith("out"):
                continue
            if not reading.summary.n_nonfinite:
                finite.add(reading.site)
                past = self._history.setdefault(reading.site, deque(maxlen=HISTORY_STEPS))
                past.append((reading.step, reading.summary.absmax))
            elif reading.summary.n_posinf or reading.summary.n_nan:
                found = found or reading.site in self._seen_finite
        self._seen_finite |= finite
        return found

    def parameter_broke(
        self,
        parameters: Sequence[torch.Tensor],
        optimizer: torch.optim.Optimizer,
        step: int,
        rank: int,
        labels: list[str],
        *,
        must_prove: bool,
        note: str = "",
    ) -> str:
        """Write evidence of an update that broke parameters although its gradients were finite; return its id.

        Args:
            must_prove: found only later, so somebody else may have written them: say nothing unless the optimizer's
                state shows that it divided by zero there.
        """
        base = Evidence(
            id=f"step-{step:06d}-nonfinite-param",
            trigger="nonfinite-param",
            step=step,
            rank=rank,
            bad_params=tuple(labels),
            n_params=len(labels),
            healthy_steps=self.healthy_steps,
            notes=(note,) if note else (),
        )
        evidence = optimizer_step.explain(base, optimizer, parameters[0], labels[0])
        if must_prove and not (evidence.float64.ran and evidence.optimizer.get("n_v_zero")):
            return ""
        return self._write(evidence, None)

    def of_output(
        self, output: torch.Tensor | None, row: Reading, trigger: Trigger, rank: int, world_size: int
    ) -> Outcome | None:
        """Look into an output that is not finite, in a program that has trained nothing so far.

        Args:
            output: None if it is gone.
            row: of the output.
            trigger: whether it is taken for a gradient.

        Returns:
            What `write` takes once it is known that nothing is ever trained; None: nothing is known.
        """
        if output is None or not self._config.replay:
            return None
        case = Case(
            id=f"step-{row.step:06d}-{trigger}", trigger=trigger, step=row.step, rank=rank,
            world_size=world_size, microbatches=(), bad_params=(), n_params=0, loss=None, loss_scale=None,
            healthy_steps=row.step,
        )  # fmt: skip
        return self._investigator.of_output(case, output)

    def of_unused_loss(self, microbatch: Microbatch, step: int, rank: int, world_size: int) -> str:
        """Write evidence of a non-finite loss that the program threw away without an update; return its id, or ""."""
        if self._n_unused >= MAX_UNUSED_LOSSES or self.poisoned:
            return ""
        self._n_unused += 1
        case = Case(
            id=f"step-{step:06d}-unused-loss", trigger="unused-loss", step=step, rank=rank, world_size=world_size,
            microbatches=(microbatch,), bad_params=(), n_params=0, loss=float(microbatch.values[0]), loss_scale=None,
            healthy_steps=self.healthy_steps, budget=BUDGETS["off"],
        )  # fmt: skip
        outcome = Outcome(evidence=self._investigator.base(case))
        if self._config.replay:
            outcome = self._investigator.investigate(case, self._rows.observe)
        return self._write(outcome.evidence, outcome)

    def write(self, outcome: Outcome | None) -> str:
        """Write the evidence and the bundle of an investigation. Returns the evidence's id, or "" if there is none."""
        return self._write(outcome.evidence, outcome) if outcome is not None else ""

    @contextlib.contextmanager
    def holding(self) -> Generator[None, None, None]:
        """Hold back what is found in this context until `release` tells the step of the update that it belongs to."""
        self._held = []
        try:
            yield
        finally:
            self.kept, self._held = self._held or [], None

    def release(self, step: int) -> str:
        """Write what was found before the update of this step. Returns the id of the last evidence, or ""."""
        kept, self.kept = self.kept, []
        found = ""
        for evidence, outcome in kept:
            name = evidence.id.replace(f"step-{evidence.step:06d}", f"step-{step:06d}")
            found = self._write(replace(evidence, id=name, step=step), outcome)
        return found

    def drop(self) -> None:
        """Forget what was found and not written yet: no update used it."""
        self.kept = []

    def _write(self, evidence: Evidence, outcome: Any) -> str:
        if self._held is not None:
            self._held.append((evidence, outcome))
            return ""
        n_before = sum(each.id.startswith(evidence.id) for each in self.written)
        if n_before:  # of another optimizer, or of another evaluation, in the same step
            evidence = replace(evidence, id=f"{evidence.id}-{n_before + 1}")
        folder = self._folder() / evidence.id
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if outcome is not None and outcome.node is not None:
                files, notes = write_bundle(folder, outcome.node, evidence, self._config.bundle_mb << 20)
                evidence = replace(evidence, bundle_files=files, notes=(*evidence.notes, *notes))
        except OSError as error:
            self._warn(f"the evidence cannot be written: {error}")
            self.written.append(evidence)
            return evidence.id
        write_evidence(self._folder(), evidence, self._warn)
        self.written.append(evidence)
        return evidence.id
