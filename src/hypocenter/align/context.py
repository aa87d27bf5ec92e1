"""What a stage works with: recordings of both sides by purpose, comparisons of them, what earlier stages found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypocenter.align.alignment import Alignment, StageResult
from hypocenter.align.plan import Plan, SideName, Widening
from hypocenter.align.recordings import Recordings, need
from hypocenter.compare.cards import RunCards, cards_of
from hypocenter.compare.comparison import Comparison, Matching, SiteCard, Spot, is_given_to_loss, is_of_update
from hypocenter.compare.curves.catalogue import read_curve
from hypocenter.compare.curves.curve import Curve
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.judged_steps import Options
from hypocenter.compare.matching import match
from hypocenter.compare.pairing.manual_map import ManualMap, read_map
from hypocenter.record.reader import RecordedRun, open_run

Wanted = Callable[[Spot], bool]


def everything(spot: Spot) -> bool:
    """Return True: every spot is wanted."""
    return True


@dataclass(kw_only=True)
class Context:
    """The recordings and comparisons of one plan. Recordings are made when a stage first asks for them.

    Attributes:
        earlier: what the stages before found, by number.
        align_widened: aligns the plan of one widening: what stage 8 does in turn.
    """

    plan: Plan
    recordings: Recordings
    earlier: Mapping[int, StageResult] = field(default_factory=dict[int, StageResult])
    align_widened: Callable[[Widening], Alignment] | None = None
    _opened: dict[Path, RecordedRun] = field(default_factory=dict[Path, RecordedRun])
    _run_cards: dict[SideName, RunCards] = field(default_factory=dict[SideName, RunCards])
    _matched: Matching | None = None
    _compared: dict[tuple[str, str], Comparison] = field(default_factory=dict[tuple[str, str], Comparison])

    def path(self, side: SideName, purpose: str, *, start_from: str = "", gradients: str = "") -> Path:
        """Return where a recording (or the log that stands for it) is. Raises what Recordings.get raises."""
        if side == "candidate" and self.plan.stages.weights == "impose" and not start_from:
            start_from = str(self.path("baseline", "steps"))
        parameters = self._endings(side) if purpose in ("updates", "fed") else ()
        wanted = need(
            self.plan, side, purpose, start_from=start_from, gradients=gradients, parameters=parameters
        )  # fmt: skip
        return self.recordings.get(wanted)

    def _endings(self, side: SideName) -> tuple[str, ...]:
        """Return the last words of the names of a side's parameters: weight, bias, ..."""
        facts = self.run(side, "steps").facts()
        modules = facts.modules if facts is not None else ()
        return tuple(sorted({name for module in modules for name in module.parameters}))

    def run(self, side: SideName, purpose: str) -> RecordedRun:
        """Open the recording of a side that was made for a purpose."""
        return self.open(self.path(side, purpose))

    def open(self, path: Path) -> RecordedRun:
        """Open a recording, once: it is kept open for the next time."""
        if path not in self._opened:
            self._opened[path] = open_run(path)
        return self._opened[path]

    def curve(self, side: SideName, purpose: str, *, start_from: str = "") -> Curve:
        """Read loss, grad norm and learning rate of a recording or log."""
        return read_curve(self.path(side, purpose, start_from=start_from))

    def loss(self, side: SideName, purpose: str, step: int) -> float:
        """Return the loss of a step, of all ranks together; NaN when it was not recorded."""
        return self._value("loss", side, purpose, step)

    def grad_norm(self, side: SideName, purpose: str, step: int) -> float:
        """Return the norm of all gradients before clipping, of all ranks together; NaN when it was not recorded."""
        return self._value("grad_norm", side, purpose, step)

    def _value(self, name: str, side: SideName, purpose: str, step: int) -> float:
        series = self.curve(side, purpose).series.get(name)
        at = [] if series is None else series.values[series.steps == step].tolist()
        return at[0] if at else math.nan

    def gradient_norms(self, side: SideName) -> dict[str, float]:
        """Return the L2 norm of each parameter's gradient as the optimizer got it in the first step, of all ranks."""
        return {c.spot.site: math.sqrt(c.sumsq) for c in self._deck(side).cards if is_gradient(c.spot)}

    def card(self, side: SideName, spot: Spot) -> SiteCard | None:
        """Return what is known of a spot in the first step that recorded it; None if none did."""
        return self._deck(side).by_spot.get(spot)

    def _deck(self, side: SideName) -> RunCards:
        if side not in self._run_cards:
            self._run_cards[side] = cards_of(self.run(side, "steps"))
        return self._run_cards[side]

    def shown(self, side: SideName, purpose: str) -> str:
        """Return the path of a recording, as one would type it in the plan's folder."""
        return self.short(self.path(side, purpose))

    def short(self, path: Path) -> str:
        """Return a path as one would type it in the plan's folder."""
        return str(path.relative_to(self.plan.folder)) if path.is_relative_to(self.plan.folder) else str(path)

    @property
    def map(self) -> ManualMap | None:
        """The pairs of names that the plan gives; None if it gives none."""
        return read_map(self.plan.folder / self.plan.stages.map) if self.plan.stages.map else None

    @property
    def matching(self) -> Matching:
        """Which site of the candidate corresponds to which of the baseline, in the first steps."""
        if self._matched is None:
            mine, other = self.run("baseline", "steps"), self.run("candidate", "steps")
            self._matched = match(
                self._deck("baseline").cards, self._deck("candidate").cards, self.map, baseline_facts=mine.facts(),
                candidate_facts=other.facts(),
            )  # fmt: skip
        return self._matched

    def compare(self, wanted: Wanted, last_step: int, *, name: str) -> Comparison:
        """Compare the first steps of both sides, as far as spots are wanted, up to and with a step.

        Args:
            name: of what is wanted: asked again, the same comparison is given.
        """
        key = name, str(last_step)
        if key not in self._compared:
            pairs = tuple(pair for pair in self.matching.pairs if any(map(wanted, pair.baseline)))
            self._compared[key] = compare_runs(
                self.run("baseline", "steps"), self.run("candidate", "steps"),
                options=Options(
                    matching=replace(self.matching, pairs=pairs), budget=self.plan.stages.budget, noise=self._noise(),
                    is_wanted=lambda step: step <= last_step,
                ),
            )  # fmt: skip
        return self._compared[key]

    def _noise(self) -> list[RecordedRun]:
        """Return the baseline's repeat, where it is not equal to the bit; else nothing."""
        earlier = self.earlier.get(1)
        is_loose = earlier is not None and "not-deterministic" in earlier.figures.get("baseline", ())
        return [self.run("baseline", "again")] if is_loose else []


def is_batch(spot: Spot) -> bool:
    """Return whether the spot is something that the model is given."""
    is_digest = spot.phase == "data" and spot.site.startswith("batch.") and not is_given_to_loss(spot)
    return is_digest or (spot.phase == "forward" and spot.site == "" and spot.port.startswith("in"))


def is_weight(spot: Spot) -> bool:
    """Return whether the spot is a parameter before the update."""
    return spot.phase == "param" and spot.port == "value"


def is_forward(spot: Spot) -> bool:
    """Return whether the spot lies between the model's input and the loss."""
    return spot.phase in ("forward", "loss") or is_given_to_loss(spot)


def is_loss(spot: Spot) -> bool:
    """Return whether the spot is the loss as given to backward."""
    return spot.phase == "loss" and spot.site == "loss"


def is_backward(spot: Spot) -> bool:
    """Return whether the spot is a gradient, of activations or of parameters."""
    return spot.phase in ("backward", "grad")


def is_gradient(spot: Spot) -> bool:
    """Return whether the spot is a gradient of a parameter."""
    return spot.phase == "grad" and spot.port == "grad"


def is_update(spot: Spot) -> bool:
    """Return whether the spot is part of an update: a gradient, learning rate, state, or parameter."""
    return spot.phase in ("grad", "param", "optimizer") or is_of_update(spot.site)
