"""`run --audit`: is what the optimizer is about to use the sum of what its micro-batches give? For HC232.

At a due step each micro-batch is done again. Whatever one factor does to all gradients (the loss scale, a mean, a clip
to a norm) is the same for every parameter; so each gradient that is used must be the sum of those that the replays
give, times the factor of all. A parameter whose gradient is something else is looked into: is it missing, has it
another factor, is one micro-batch left out or counted twice, is the gradient of the step before still in it? The factor
of all must be 1, one over the loss scale, or what brings the norm to that of earlier clips.

How micro-batches are done again is for each framework to say: hypocenter.session.torch_audit, session.mindspore.audit.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypocenter.config import Config
from hypocenter.detect import law_rows as law
from hypocenter.formats import FORMATS
from hypocenter.nouns import Reading, replace
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.session.check import Check
from hypocenter.session.events import ContextT, Observer, Update
from hypocenter.session.framework import Framework
from hypocenter.session.observers.cleared import Cleared
from hypocenter.session.observers.columns import Block, blocks
from hypocenter.session.observers.optimizer_rows import count_row, number_row
from hypocenter.session.observers.repeats import Repeats, UnlikeTheRun
from hypocenter.session.observers.thrown_away import ThrownAway, n_thrown, norm_of

Array = NDArray[np.float64]

ELEMENTS = 4096  # of a gradient that is looked into
ALWAYS = 3  # audited steps in a row, the first one among them, that use only the last of their micro-batches
LEAST_SCALE = 16.0  # of a loss: a smaller number may be a weight, and what is divided by it too
FEWEST = 3  # micro-batches: of two, a half is as often the half of a squared error
STAYS = 2  # audited steps in which a parameter balanced, before one in which it does not
KEPT_AT_MOST = 16  # micro-batches that are told apart
TOLERANCE = 1e-3  # relative, of a norm; and at least _ROUNDINGS of the format
_ROUNDINGS = 32  # units in the last place: sums of micro-batches in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Gradients of parameters, as they are used and as the replays give them; an element for each.

    Attributes:
        places: in the parameters of the balance.
        used: square of the norm of what is used; 0 of none. 1 may stand for it where it is the
            very same as what was made.
        made: of the sum of what the replays give.
        dot: their scalar product.
        tolerance: relative difference of norms that rounding may make.
    """

    places: Sequence[int]
    used: Array
    made: Array
    dot: Array
    tolerance: Array

    @property
    def factor(self) -> Array:
        """What is used over what was made, where they point the same way."""
        with np.errstate(all="ignore"):
            return np.where(self.made > 0, self.dot / self.made, 1.0)

    @property
    def are_multiples(self) -> NDArray[np.bool_]:
        """Whether one is a multiple of the other."""
        with np.errstate(all="ignore"):
            rest = self.used - self.dot * self.factor  # square of the norm of what is not a multiple
            return rest <= self.tolerance**2 * self.used

    def only(self, kept: NDArray[np.bool_]) -> Entries:
        """Of some of them."""
        places = [place for place, is_kept in zip(self.places, kept.tolist(), strict=True) if is_kept]
        used, made, dot, tolerance = (each[kept] for each in (self.used, self.made, self.dot, self.tolerance))
        return Entries(places=places, used=used, made=made, dot=dot, tolerance=tolerance)

    def have(self, factor: float) -> NDArray[np.bool_]:
        """Whether they are made times that."""
        return self.are_multiples & (np.abs(self.factor - factor) <= self.tolerance * abs(factor))


def common_factor(entries: Entries) -> float | None:
    """The factor of most of the gradients, each counted once; None where there is none."""
    is_made = entries.made > 0
    factors = entries.factor[is_made & (entries.used > 0) & entries.are_multiples]
    if not factors.size:
        return None
    usual = statistics.median_low(factors.tolist())
    return usual if 2 * np.count_nonzero(entries.have(usual) & is_made) > np.count_nonzero(is_made) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Both sides of the law, of the parameters of one optimizer.

    Attributes:
        parameters: of the model.
        entries: of those that the micro-batches give a gradient.
        used: the gradient of each that is used.
        parts: gives samples of the gradient of one in each micro-batch, flat arrays of the framework.
    """

    parameters: Sequence[Any]
    entries: Entries
    used: Sequence[Any | None]
    parts: Callable[[int], Sequence[Any]]


def tolerance_of(dtype: str) -> float:
    """Relative difference of norms that rounding may make, of a gradient in this format ("": of none)."""
    return max(TOLERANCE, _ROUNDINGS * FORMATS[dtype].eps) if dtype in FORMATS else TOLERANCE


class Audit(Observer[ContextT]):
    """Writes a row for each audited step, and one for each gradient that is not what its micro-batches give."""

    def __init__(self, context: ContextT) -> None:
        super().__init__(context)
        self._audits = context.audits
        self._n_balanced: dict[int, int] = {}  # by id of a parameter: audited steps in a row
        self._before: dict[int, tuple[int, Sequence[Block]]] = {}  # by id of an optimizer: step, and what it used then
        self._n_explained = self._n_consumed = 0  # audited steps in a row
        self._n_microbatches = 0  # of the last audited step
        self._clips: list[list[int]] = []  # in this step: ids of the parameters of each
        self._clipped_to = 0.0  # norm of their gradients after the last clip that was seen to act, scale taken out
        self._n_clips = 0  # in a row that gave this norm: a threshold may also follow the gradients
        self._thrown_away = ThrownAway()
        self._n_throwing = 0  # audited steps in a row that use only the last of as many micro-batches as ever
        self._has_balanced = False  # in some step all were used
        self._n_divided = 0  # audited steps in a row with too many divisions; below 0: it was told
        self._divided_since = 0  # step of the first of them
        self._n_scaled = 0  # audited steps in a row with a scale left in; below 0: it was told
        self._scaled_since = 0  # step of the first of them
        self._n_more = 0  # micro-batches of this step, than usual
        self._unclipped: float | None = None  # norm in this step
        self._is_asked_for = context.config.audit != Config().audit
        self._n_nothing: dict[int, int] = {}  # by id of an optimizer's first parameter: audited steps that used nothing
        self._n_given_up, self._has_warned = 0, False
        self._repeats = Repeats()
        self._cleared = Cleared(context.framework)

    # for a framework to say

    def are_alike(self, update: Update) -> bool:
        """Whether the micro-batches of an update are calls of one loop, made to be added up."""
        return False

    def balance(self, update: Update) -> Balance:
        """Do the micro-batches again.

        Raises:
            ReplayImpossible: with the reason.
        """
        raise NotImplementedError

    def norm_after_clip(self, update: Update) -> float:
        """L2 norm of the gradients that were clipped in this step, the loss scale taken out."""
        return update.check.total_norm

    def n_divisions(self, update: Update) -> int:
        """How often the program divides the loss of the last micro-batch by the number of micro-batches."""
        return 0

    def loss_factor(self, update: Update) -> float:
        """By what the program multiplies the loss of each micro-batch in the end; 1 where that is not known."""
        return 1.0

    def lost_calls(self, update: Update) -> list[str]:
        """Calls of a model in training that no backward of this step went through: names of modules."""
        return []

    def unwritten(self, update: Update) -> Reading | None:
        """A row for an operator that reads memory which nobody has written, if this step has one."""
        return None

    def look(self, update: Update, *, can_be: bool) -> None:
        """Audit this step if it is due.

        Args:
            can_be: whether there is anything to do again.
        """
        if can_be and self._audits.is_due(update.step):
            self.audit(update)

    # what is the same for all

    def note_how_far(self, update: Update, look: Callable[[], float], *, is_exact: bool = True) -> None:
        """Look how far a replay is from the run; a row, once, if it is further off than those before.

        Args:
            look: gives the distance, relative, or raises UnlikeTheRun.
            is_exact: whether the replay runs the same code as the run did.

        Raises:
            ReplayImpossible: it is too far off for a replay.
        """
        try:
            apart = look()
        except UnlikeTheRun as unlike:
            self._note_repeat(update, unlike.apart)
            raise
        if is_exact and not self._note_repeat(update, apart):
            raise ReplayImpossible("a replay does not repeat the run as those before did")

    def _note_repeat(self, update: Update, apart: float) -> bool:
        is_near = self._repeats.is_as_before(apart)
        row = None if is_near else self._repeats.row(update.step, apart, self.context.clock.next_order())
        self.rows += [] if row is None else [row]
        return is_near

    def before_clip(self, parameters: Sequence[Any], max_norm: float) -> None:
        """What comes may be brought to a norm."""
        self._clips.append(list(map(id, parameters)))

    def seen_before_clip(self, parameters: Sequence[Any], check: Check) -> None:
        """Its norm then."""
        self._unclipped = check.total_norm

    def before_update(self, update: Update) -> None:
        """The step is complete, and the parameters are still those that it started from."""
        if n_updates := self._cleared.every(update):
            order, ago = self.context.clock.next_order(), update.step - self._cleared.since
            row = number_row(law.SITE, law.UNBALANCED, update.step, order, n_updates, call=ago)
            self.rows.append(replace(row, module=law.IN_ACCUMULATION))
        is_known = self._thrown_away.is_known(update)
        self._n_more = self._thrown_away.n_more(update)
        can_be = bool(update.microbatches) and update.check.is_finite and (is_known or not self._n_more)
        try:
            if self._audits.is_due(update.step):
                with self._audits.spending():
                    self.look(update, can_be=can_be and not update.skipped)
            else:
                self.look(update, can_be=False)
        except ReplayImpossible as why:
            self._give_up(update.step, str(why))
        self._thrown_away.remember(update, self._norm_before_clip(update))
        self._unclipped = None
        self._clips = []
        key = id(update.optimizer)
        self._before = {k: each for k, each in self._before.items() if k != key and each[0] >= update.step - 1}
        if self._audits.is_due(update.step + 1):
            with self._audits.spending(calls_program=False):
                parameters = [parameter for parameter, _ in update.gradients]
                held = [{"grad": gradient} for _, gradient in update.gradients]
                self._before[key] = update.step, blocks(self.context.framework, parameters, held, ELEMENTS)

    def _norm_before_clip(self, update: Update) -> float:
        return update.check.total_norm if self._unclipped is None else self._unclipped

    def _give_up(self, step: int, why: str) -> None:
        """By default an audit is a bonus: without one nothing is said."""
        self._n_given_up += 1
        is_early = self._n_given_up == 1 and self.context.rank()[1] > 1  # the ranks may still be finding together
        if self._is_asked_for and not self._has_warned and not is_early:
            self._has_warned = True
            self.context.warn(f"step {step} could not be audited: {why}")

    def audit(self, update: Update) -> None:
        """Do the step again, and write down what does not balance."""
        balance = self.balance(update)
        entries = balance.entries
        usual = common_factor(entries)
        if self._n_more or (usual is None and self._n_throwing < ALWAYS):
            self._look_for_thrown_away(balance, update)
        self._has_balanced = self._has_balanced or usual is not None
        if self._n_more:
            return
        self._look_for_nothing(entries, update)
        is_balanced = (entries.made == 0) & (entries.used == 0) | self._has_factor(balance, usual)
        order = self.context.clock.next_order
        for at, (index, is_well) in enumerate(zip(entries.places, is_balanced.tolist(), strict=True)):
            parameter = balance.parameters[index]
            n_before = self._n_balanced.get(id(parameter), 0)
            if is_well:
                self._n_balanced[id(parameter)] = n_before + 1
                continue
            self._n_balanced[id(parameter)] = -(1 << 30)  # from here on it is known
            if n_before < 0:
                continue
            kind, number = self._kind(balance, at, n_microbatches=len(update.microbatches))
            factor = float(entries.factor[at]) / (usual or 1.0)
            row = number_row(
                self.context.label(parameter), law.UNBALANCED, update.step, order(), factor,
                module=kind, call=n_before,
            )  # fmt: skip
            # of updates by hand it takes some steps to know where one ends
            is_known = self.context.framework.optimizer(update.optimizer) is not None
            if n_before >= STAYS or (kind == law.STEP_BEFORE and is_known):
                self.rows.append(replace(row, op=number))
                if kind == law.STEP_BEFORE:
                    self._cleared.begin(update)
        if usual is not None:
            self._look_for_scale(balance, usual, is_balanced, update)
            self._look_for_divisions(usual, update)
            self._explain(usual, update, float(entries.tolerance.max()))
        self._look_for_lost_calls(update)
        if (row := self.unwritten(update)) is not None:
            self.rows.append(row)
        looked = len(entries.places), int(np.count_nonzero(is_balanced))
        self.rows.append(count_row(law.SITE, law.BALANCED, update.step, order(), looked, module=law.GRADIENT))

    def _has_factor(self, balance: Balance, usual: float | None) -> NDArray[np.bool_]:
        """Of each whether it has the factor of all, or of those that are clipped together with it, or are not."""
        entries, clips = balance.entries, defaultdict[int, tuple[int, ...]](tuple)
        found = np.zeros(len(entries.places), dtype=np.bool_) if usual is None else entries.have(usual)
        for number, ids in enumerate(self._clips):
            for each in ids:
                clips[each] += (number,)
        groups = defaultdict[tuple[int, ...], list[bool]](lambda: [False] * len(found))
        for at, place in enumerate(entries.places):
            groups[clips.get(id(balance.parameters[place]), ())][at] = True
        for is_in in map(np.array, groups.values() if len(groups) > 1 else ()):
            if (factor := common_factor(entries.only(is_in))) is not None:
                found |= is_in & entries.have(factor)
        return found

    def _look_for_nothing(self, entries: Entries, update: Update) -> None:
        """No gradient is used at all, although there are some: nobody does that on purpose, also not from the start."""
        is_nothing = bool((entries.made > 0).any()) and not entries.used.any()
        key = id(update.parameters[0]) if update.parameters else 0
        self._n_nothing[key] = self._n_nothing.get(key, 0) + 1 if is_nothing else 0
        if self._n_nothing[key] == STAYS and self.context.framework.optimizer(update.optimizer) is not None:
            order = self.context.clock.next_order()
            self.rows.append(number_row(law.SITE, law.UNBALANCED, update.step, order, 0.0, module=law.MISSING))

    def _look_for_thrown_away(self, balance: Balance, update: Update) -> None:
        """Some programs leave out an update, or the end of an epoch, and throw its gradients away."""
        framework, n = self.context.framework, len(update.microbatches)
        pairs = [
            ([framework.on_host(part) for part in parts], framework.on_host(target))
            for place, used in enumerate(balance.used)
            if len(parts := balance.parts(place)) == n <= KEPT_AT_MOST
            and (target := _sampled(framework, used)) is not None
        ]
        if not pairs:
            return
        columns = [np.concatenate([parts[i] for parts, _ in pairs]) for i in range(n)]
        thrown = n_thrown(columns, np.concatenate([target for _, target in pairs]))
        if thrown == 0:
            self._thrown_away.all_count(update)
        elif thrown is not None and (
            not self._n_more or thrown == self._n_more
        ):  # always so many, if they are no more than usual
            self._n_throwing += not self._n_more
            if self._n_throwing == ALWAYS and not self._has_balanced and self.are_alike(update):
                order = self.context.clock.next_order()
                row = number_row(law.SITE, law.THROWN_AWAY, update.step, order, thrown, call=n - thrown)
                self.rows.append(replace(row, module=law.ALWAYS))
                return
            if self._n_throwing > 1:
                return
            norm = norm_of(columns, thrown, self._norm_before_clip(update))
            is_of_samples = any(math.prod(parameter.shape) > ELEMENTS for parameter in balance.parameters)
            if self._thrown_away.looks_usual(update, thrown, norm, is_of_samples=is_of_samples):
                order = self.context.clock.next_order()
                self.rows.append(number_row(law.SITE, law.THROWN_AWAY, update.step, order, thrown, call=n - thrown))

    def _look_for_scale(self, balance: Balance, usual: float, is_balanced: NDArray[np.bool_], update: Update) -> None:
        """Who multiplies a loss by a large number takes it out of all gradients, or of none."""
        entries, scale = balance.entries, 1.0
        if self._n_scaled >= 0 and not is_balanced.all():
            scaled = update.scaled
            scale = self.loss_factor(update) * ((scaled.state.scale or 1.0) if scaled is not None else 1.0)
        left = ~is_balanced & (entries.have(usual * scale) | entries.have(usual / scale))
        self._n_scaled = self._n_scaled + 1 if scale >= LEAST_SCALE and left.any() else min(0, self._n_scaled)
        if self._n_scaled == 1:
            self._scaled_since = update.step
        if self._n_scaled == STAYS:
            self._n_scaled = -1
            for at in np.flatnonzero(left).tolist():
                name = self.context.label(balance.parameters[entries.places[at]])
                order, factor = self.context.clock.next_order(), float(entries.factor[at]) / usual
                ago = update.step - self._scaled_since
                row = number_row(name, law.UNBALANCED, update.step, order, factor, module=law.SCALED, call=ago)
                self.rows.append(replace(row, op=f"{scale:g}"))

    def _look_for_divisions(self, usual: float, update: Update) -> None:
        """A mean over micro-batches divides by their number once: the loss of each, or what they add up to."""
        n, scaled = len(update.microbatches), update.scaled
        if n < FEWEST or self._n_divided < 0:
            return
        scale = (scaled.state.scale or 1.0) if scaled is not None and scaled.is_unscaled else 1.0
        are_divided = not self._clips and math.isclose(usual * scale * n, 1.0, rel_tol=TOLERANCE)
        n_times = self.n_divisions(update) + are_divided
        self._n_divided = self._n_divided + 1 if n_times > 1 else 0
        if self._n_divided == 1:
            self._divided_since = update.step
        if self._n_divided == STAYS:
            self._n_divided = -1
            order = self.context.clock.next_order()
            ago = update.step - self._divided_since
            row = number_row(law.SITE, law.UNBALANCED, update.step, order, n ** (1.0 - n_times), call=ago)
            self.rows.append(replace(row, module=law.TWICE, op=str(n)))

    def _explain(self, usual: float, update: Update, tolerance: float) -> None:
        """Where the factor of all comes from."""
        scaled = update.scaled
        expected = 1.0 / (scaled.state.scale or 1.0) if scaled is not None and scaled.is_unscaled else 1.0
        is_explained = abs(usual / expected - 1.0) <= tolerance
        if not is_explained and self._clips and usual < expected:
            norm = self.norm_after_clip(update)
            is_usual = abs(norm - self._clipped_to) <= tolerance * self._clipped_to
            is_explained = is_usual or self._n_clips < STAYS
            self._n_clips, self._clipped_to = self._n_clips + 1 if is_usual else 1, norm
        if not is_explained and self._n_explained >= STAYS:
            row = number_row(
                law.SITE, law.UNBALANCED, update.step, self.context.clock.next_order(), usual / expected,
                module=law.FACTOR, call=self._n_explained,
            )  # fmt: skip
            self.rows.append(row)
        self._n_explained = self._n_explained + 1 if is_explained else -(1 << 30)

    def _look_for_lost_calls(self, update: Update) -> None:
        calls = self.lost_calls(update)
        n_before, self._n_microbatches = self._n_microbatches, len(update.microbatches)
        if calls and self._n_consumed >= STAYS and self._n_microbatches < n_before:
            order, n = self.context.clock.next_order(), len(calls)
            row = number_row(law.SITE, law.NOT_CONSUMED, update.step, order, n, module=calls[0], call=self._n_consumed)
            self.rows.append(row)
        self._n_consumed = -(1 << 30) if calls else self._n_consumed + 1

    def _kind(self, balance: Balance, at: int, *, n_microbatches: int) -> tuple[str, str]:
        """How an entry is off, and the number of the micro-batch if it is one."""
        framework, entries, place = self.context.framework, balance.entries, balance.entries.places[at]
        used, parameter = balance.used[place], balance.parameters[place]
        if used is None or entries.used[at] == 0:
            return law.MISSING, ""
        if entries.are_multiples[at]:
            return law.FACTOR, ""
        target, parts = framework.sample(used, ELEMENTS), balance.parts(place)
        kept = chain.from_iterable(each for _, each in self._before.values())
        held = (part for block in kept for p, _, part, _ in block.items() if p is parameter)
        before = next(held, None)
        if target is None or len(parts) != n_microbatches or len(parts) > KEPT_AT_MOST:
            return law.OTHER, ""
        columns = [framework.on_host(each) for each in (parts if before is None else [*parts, before])]
        weights = weights_of(columns, framework.on_host(target), float(entries.tolerance[at]))
        if weights is None:
            return law.OTHER, ""
        of_parts = weights[: len(parts)]
        typical = statistics.median(of_parts)
        if before is not None and any(abs(weights[-1] - each) <= 0.01 * abs(each) for each in (typical, 1.0)):
            return law.STEP_BEFORE, ""  # as it was, or with what all get; who keeps a part of it, as momentum, means it
        off = [i for i, weight in enumerate(of_parts) if abs(weight - typical) > 0.01 * abs(typical)]
        return (law.MICROBATCH, str(off[0])) if len(off) == 1 else (law.OTHER, "")


def _sampled(framework: Framework, gradient: Any | None) -> Any | None:
    return None if gradient is None else framework.sample(gradient, ELEMENTS)


def weights_of(columns: Sequence[NDArray[Any]], target: NDArray[Any], tolerance: float) -> list[float] | None:
    """How much of each column is in the target, least squares; None where that does not make it up."""
    if target.size <= len(columns):
        return None
    matrix = np.stack(columns, axis=1)  # [n elements, n columns]
    found = np.linalg.lstsq(matrix, target, rcond=None)[0]
    rest = np.linalg.norm(matrix @ found - target)
    return found.tolist() if rest <= tolerance * np.linalg.norm(target) else None
