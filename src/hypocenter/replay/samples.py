"""Which rows of the batch a failure belongs to: told by replays without them and with them alone, not by shapes."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from hypocenter.diagnose.evidence import Evidence
from hypocenter.diagnose.numbers import listed
from hypocenter.nouns import Remedy
from hypocenter.replay.impossible import OutOfTime

MOST_REPLAYS = 32  # while rows are looked for by halves: one bad row of 16,384 takes 28
PATIENCE_S = 20.0  # seconds the user's job may wait for it
SMALL_PART = 8  # a step that needs more than an eighth of its rows left out has another problem than its samples

IsSound = Callable[[Sequence[int]], bool]
"""Whether the step is sound with these rows of the batch only. It may raise: some models want all rows."""


class Shaped(Protocol):
    """Anything with a shape: a tensor or an array."""

    @property
    def shape(self) -> Any:
        """The sizes of its dimensions."""
        ...


def batch_size(inputs: Sequence[Shaped]) -> int:
    """Return the first dimension that most of the inputs from outside share; 0 when there is none.

    Ties go to the first input: it is what the model was called with.
    """
    sizes = Counter(int(t.shape[0]) for t in inputs if len(t.shape) > 0)
    return max(sizes, key=lambda size: (sizes[size], -list(sizes).index(size))) if sizes else 0


def rows_of(bad: ArrayLike, n_rows: int) -> tuple[int, ...]:
    """Return rows that a mask of bad elements would belong to if its first dimension were the batch, or a multiple.

    (batch * heads, ...) and (batch * tokens, ...) are laid out batch first. A guess, to be tried. Empty: no guess.
    """
    mask = np.asarray(bad, dtype=np.bool_)
    if n_rows < 1 or mask.ndim == 0 or mask.shape[0] % n_rows or mask.shape[0] == 0:
        return ()
    return tuple(int(i) for i in np.flatnonzero(mask.reshape(n_rows, -1).any(axis=1)))


def named(
    evidence: Evidence,
    rows: tuple[int, ...],
    n_rows: int,
    is_sound: IsSound,
    *,
    unsound_alone: Callable[[], Sequence[int] | None] | None = None,
    most_steps: float = math.inf,
) -> Evidence:
    """Return the evidence with the batch rows to blame: without them the step is sound, with them alone it is not.

    Args:
        evidence: with leaf and origin filled in.
        rows: a guess.
        n_rows: of the batch.
        is_sound: tells by a replay.
        unsound_alone: tells the rows that are not sound alone, in one run; or None: then they are found by halves.
        most_steps: that may be done again while rows are looked for, in batches of all rows.
    """
    evidence = replace(evidence, n_samples=n_rows)
    if n_rows < 2 or evidence.leaf_kind in ("param", "buffer", "external"):
        return evidence
    trial = _Trial(is_sound, n_rows, most_steps)
    try:
        if not trial.is_to_blame(rows):
            rows = trial.found(unsound_alone)
            rows = rows if trial.is_to_blame(rows) else ()
    except Exception as error:  # of the user's model, which cannot do this
        is_known = evidence.leaf is not None and evidence.leaf.shape[:1] == (n_rows,)
        notes = (f"its samples were not looked for: {error}",) if isinstance(error, OutOfTime) else ()
        evidence = replace(evidence, notes=(*evidence.notes, *notes))
        return replace(evidence, samples=rows if is_known else ())  # in a tensor of the batch itself they are seen
    return replace(evidence, samples=rows, samples_confirmed=True if rows and not trial.repeats else None)


class _Trial:
    """Replay parts of a batch, as long as patience lasts."""

    def __init__(self, is_sound: IsSound, n_rows: int, most_steps: float = math.inf) -> None:
        self._is_sound, self._n_rows = is_sound, n_rows
        self.repeats = False  # other rows stood in for those that were to be left out
        self._n_replays, self._n_left = 0, most_steps * n_rows  # rows
        self._until = time.perf_counter() + PATIENCE_S

    def is_to_blame(self, rows: Sequence[int]) -> bool:
        """Return whether the step is sound without these rows, and not sound with them alone.

        Where rows are compared with each other, or normalised over, one alone shows nothing: then with them and half of
        the rest.
        """
        rest = [row for row in range(self._n_rows) if row not in set(rows)]
        if not rows or not rest or not self._sound(rest):
            return False
        return self._fails_alone(rows, rest) or (len(rest) > 1 and not self._sound(sorted((*rows, *rest[::2]))))

    def _fails_alone(self, rows: Sequence[int], rest: Sequence[int]) -> bool:
        if len(rest) == 1 or self.repeats:
            return not self._sound(rows)
        self._counts(rows)
        try:
            return not self._is_sound(rows)
        except OutOfTime:
            raise
        except Exception:  # a norm over rows wants several
            return False

    def found(self, unsound_alone: Callable[[], Sequence[int] | None] | None) -> tuple[int, ...]:
        """Return rows that are not sound alone; none when they are too many to be the samples' fault."""
        if unsound_alone is not None:
            self._counts(range(self._n_rows))
            if told := unsound_alone():  # none of them: rows are compared with each other
                return tuple(told) if 2 * len(told) < self._n_rows else ()
        return self._found_by_halves()

    def _found_by_halves(self) -> tuple[int, ...]:
        """Return bad rows by halving what is not sound; a second half is tried only if the first is not sound
        either."""
        bad: list[int] = []
        unsound: list[Sequence[int]] = [range(self._n_rows)]
        while unsound:
            if self._is_spent or 2 * len(bad) >= self._n_rows:
                return ()
            part = unsound.pop()
            if len(part) == 1:
                bad.append(part[0])
                continue
            first, second = part[: len(part) // 2], part[len(part) // 2 :]
            if self._sound(first):
                unsound.append(second)
            else:
                unsound.append(first)
                if not self._sound(second):
                    unsound.append(second)
        return tuple(sorted(bad))

    @property
    def _is_spent(self) -> bool:
        is_over = self._n_replays >= MOST_REPLAYS or time.perf_counter() > self._until
        return is_over or self._n_left < self._n_rows  # what is found is tried without it, and alone

    def _counts(self, rows: Sequence[int]) -> None:
        self._n_replays += 1
        self._n_left -= self._n_rows if self.repeats else len(rows)

    def _sound(self, rows: Sequence[int]) -> bool:
        self._counts(rows)
        try:
            return self._is_sound(rows)
        except OutOfTime:
            raise
        except Exception:  # a model that wants exactly this batch size: then these rows, over and over
            self.repeats = True
            return self._is_sound([rows[i % len(rows)] for i in range(self._n_rows)])


def remedy(evidence: Evidence) -> Remedy | None:
    """Propose to leave the bad rows out, if a replay without exactly these was finite and they are few; else None."""
    n = len(evidence.samples)
    is_in_batch = evidence.leaf_kind == "batch"
    if not n or not evidence.samples_confirmed or (n > max(1, evidence.n_samples // SMALL_PART) and not is_in_batch):
        return None
    return Remedy(
        action="drop-samples",
        targets=tuple(str(row) for row in evidence.samples),
        verified=True,
        text=f"leave out batch row{'s' if n > 1 else ''} {listed(evidence.samples)}",
    )
