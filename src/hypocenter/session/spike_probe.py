"""Steps whose loss or gradient jumps, done again while their inputs are there; and healthy ones, to know what is usual.

Healthy steps are traced rarely: three of the first thousand; more of them, and one in a thousand later, only while all
that was spent on it is within FREE_S or SHARE of the time since the first step.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from hypocenter import own_time
from hypocenter.config import Config
from hypocenter.detect.rises import Rises
from hypocenter.detect.spikes import WINDOW, Jump, Series
from hypocenter.diagnose.evidence import Evidence
from hypocenter.diagnose.spike_words import BEFORE, rise
from hypocenter.replay.case import Case, Outcome
from hypocenter.replay.engine import Replayer
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.preparation import Preparation
from hypocenter.replay.spike import GRADIENT, LOCAL, LOSS, Spike, SpikeReplay
from hypocenter.session.check import Check
from hypocenter.session.stalls import stalling
from hypocenter.tap.names import NameMap
from hypocenter.tap.out_of_memory import give_back, is_out_of_memory

FREE_S, SHARE = 0.2, 0.002  # what traces of healthy steps may take beside the needed ones
_NEEDED = frozenset({8, 64, 512})  # steps that are traced whatever it takes
_EVERY = 1000  # one in so many is traced while there is time
_AT_ONCE, _REGAINED = 8, 500  # jumps that are looked into, and one more after so many steps
_CLIPPED = 1.01  # times smaller after clipping than before
_PATIENCE = 3  # failures in a row, after which nothing is tried any more


class SpikeProbe:
    """Looks at every step that is finite, and replays those whose loss or gradient jumps."""

    def __init__(
        self,
        config: Config,
        names: NameMap,
        replayer: Replayer,
        preparation: Preparation | None = None,
        now: Callable[[], float] = own_time.now,
    ) -> None:
        self._made = lambda: SpikeReplay(replayer, names, preparation)
        self._replays: dict[str, SpikeReplay] = {}  # by optimizer: a model is used otherwise in the step of another
        self._n_looks: Counter[str] = Counter()  # steps of each
        self._is_on, self._now = config.replay and config.audit != "never", now
        self._series: defaultdict[tuple[str, str], Series] = defaultdict(Series)  # by optimizer and what it is of
        self._rises: defaultdict[str, Rises] = defaultdict(Rises)  # by optimizer
        self._rates: dict[str, deque[tuple[int, float]]] = {}  # by optimizer, of the last steps: (step, learning rate)
        self._used: dict[str, deque[float]] = {}  # by optimizer: norms of the gradients that it used
        self._began: float | None = None
        self._spent_s = 0.0
        self._n_left, self._since = _AT_ONCE, 0
        self._n_failed = 0

    def look(self, check: Check, case: Case, base: Callable[[Case], Evidence]) -> Outcome | None:
        """Return evidence of where a jump began; None if the step has no jump.

        Args:
            check: of the step.
            case: the step.
            base: what is known of a step without a replay.
        """
        key = check.key
        jumps = self._jumps(key, check, case.loss_scale)
        rates = self._rates.setdefault(key, deque(maxlen=BEFORE + 2))
        if check.lr is not None:
            rates.append((case.step, check.lr))
        used = self._used.setdefault(key, deque(maxlen=WINDOW))
        followed = consequences(check, sorted(used)[len(used) // 2] if used else 0.0) if jumps else {}
        used.append(check.total_norm)
        if not self._is_on or not case.microbatches:
            return None
        try:
            if jumps:
                return self._into(key, jumps, case, lambda each: replace(base(each), facts=followed))
            self._learn(key, case)
            self._n_failed = 0
        except ReplayImpossible:
            self._fail()
        except Exception as error:  # the user's own code runs here: anything may come out of it
            self._fail()
            if is_out_of_memory(error):
                self._is_on = False
                give_back(error)
        return None

    def _jumps(self, key: str, check: Check, scale: float | None) -> list[tuple[str, Jump]]:
        """Return the jumps of the loss, of the gradient's norm or of one parameter's gradient, and what each is of."""
        found: list[tuple[str, Jump]] = []
        gradients = check.unclipped or check
        loss, n = check.mean_loss(scale), len(check.losses)
        values = ((LOSS, loss, n), (GRADIENT, gradients.total_norm, 0), (LOCAL, check.local_norm, 0))
        for of, value, n_terms in values:
            if value is None:
                continue
            if (jump := self._series[key, of].add(value, n_terms)) is not None:
                found.append((of, jump))
        rise = self._rises[key].add(gradients.grad_norms) if self._is_on else None
        if len(found) > 1:
            found.sort(key=lambda each: each[1].within > 0.0)  # first what the run has not survived before
        return found or ([rise] if rise is not None else [])

    def _into(
        self, key: str, jumps: Sequence[tuple[str, Jump]], case: Case, base: Callable[[Case], Evidence]
    ) -> Outcome | None:
        if case.step - self._since >= _REGAINED:
            self._n_left, self._since = min(_AT_ONCE, self._n_left + 1), case.step
        if not self._n_left:
            return None
        self._n_left -= 1
        of, jump = jumps[0]
        known = base(replace(case, trigger="spike", id=f"step-{case.step:06d}-spike"))
        more = {"farthest": 2.0 ** max(each.octaves for _, each in jumps)}
        more |= {"within": jump.within} if jump.within else {}
        more |= {"few": jump.few} if jump.few > 1.0 else {}
        known = replace(known, facts={**known.facts, **rise(self._rates[key]), **more})
        spike = Spike(base=known, of=of, jump=jump, scale=case.loss_scale or 1.0, microbatches=case.microbatches)
        with stalling(f"step {case.step} is done again to find where it jumped"):
            return self._of(key).investigate(spike)

    def _of(self, key: str) -> SpikeReplay:
        if key not in self._replays:
            self._replays[key] = self._made()
        return self._replays[key]

    def _learn(self, key: str, case: Case) -> None:
        n = self._n_looks[key]
        self._n_looks[key] += 1
        if not self._is_due(n):
            return
        began = self._now()
        try:
            self._of(key).learn(case.microbatches[-1], case.loss_scale or 1.0)
        finally:
            self._spent_s += self._now() - began

    def _is_due(self, step: int) -> bool:
        if self._began is None:
            self._began = self._now()
        if step in _NEEDED:
            return True
        is_doubled = step & (step - 1) == 0 or (step % 3 == 0 and (step // 3) & (step // 3 - 1) == 0)
        is_rare = step > 1 and (is_doubled or step % _EVERY == 0)
        return is_rare and self._spent_s < max(FREE_S, SHARE * (self._now() - self._began))

    def _fail(self) -> None:
        self._n_failed += 1
        self._is_on = self._is_on and self._n_failed < _PATIENCE


def consequences(check: Check, usual: float) -> dict[str, float | str]:
    """Return facts of what the update does with gradients that jumped: are they clipped, how long are they remembered?

    Args:
        check: of the step.
        usual: norm of the gradients that the optimizer uses in other steps; 0.0: not known.
    """
    before, used = (check.unclipped or check).total_norm, check.total_norm
    facts: dict[str, float | str] = {}
    if before > _CLIPPED * used:
        facts |= {"clipped_from": before, "clipped_to": used}
    if usual and used > 2.0 * usual:
        facts |= {"used": used / usual}
        first, second = check.decays
        facts |= {"n_first": n_first, "first": first} if (n_first := outweighs(used / usual, first)) else {}
        facts |= {"n_second": n_second, "second": second} if (n_second := halves(used / usual, second)) else {}
    return facts


def outweighs(times: float, decay: float) -> int:
    """Count updates in which one gradient, so many times larger, outweighs all others in a running mean of them.

    Its weight is (1 - decay) * decay^n after n further updates, that of the others together at most 1.
    """
    share = (1.0 - decay) * times
    return math.ceil(math.log(share) / -math.log(decay)) if decay and share > 1.0 else 0


def halves(times: float, decay: float) -> int:
    """Count updates that are halved or worse, as the root of a running mean of squares has at least doubled.

    The mean is 1 + (1 - decay) * times^2 * decay^n of what is usual after n further updates; the root doubles at 4.
    """
    share = (1.0 - decay) * times**2 / 3.0
    return math.ceil(math.log(share) / -math.log(decay)) if decay and share > 1.0 else 0
