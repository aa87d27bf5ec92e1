"""The law of averages: one update of an average lies on the way from what it was to its source, as far for each tensor.

For HC261. An average of the weights (EMA, SWA, a teacher, a target network) becomes `average + a * (source - average)`,
with 0 < a <= 1 and one `a` for all its tensors at one update. Samples of some tensors are kept after an update of the
model and compared before the next one, where nothing else writes to either. What moves otherwise is not an average of
this kind and says nothing, as long as it is not just on the way from its source, or to the source of another tensor.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hypocenter.detect.law_rows import AWAY, ELSEWHERE, FAR_AWAY, FORGETS, LEFT_BEHIND, SITE
from hypocenter.nouns import Reading, replace
from hypocenter.session.observer import Context, Update
from hypocenter.session.observers.grid import wide_dtype
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.observers.sampled import Deferred, sample
from hypocenter.tap.weakly import Ref

ELEMENTS = 512  # of a tensor
PAIRS = 8
DENSE = 48  # updates of the model that are all looked at, until TIMES moves were seen; then those that double
TIMES = 3  # moves in a row that break the law
ROUNDINGS = 64  # units of the format, of the average: a shorter move is not judged
STRAIGHT = 0.03  # sine of the angle between a move and the way to the source
UNLIKE, SLOW = 0.3, 0.5  # cosine of the angle between the two, and `a`: an average of something else
FAST = 0.9  # `a` of what keeps next to nothing of what it was: its source, but not just
WARM = 16  # updates, before which a decay that grows with their number may be as low
MOST_SOURCES = 64  # of one shape, among which that of another tensor is looked for
_NUMBERS = 7  # of a pair: see `_numbers`


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    name: str
    source: Ref[Tensor]
    copy: Callable[[], Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One update of a tensor of an average.

    Attributes:
        a: how far it went on the way to its source; NaN: it went another way, or not far enough to be judged.
        is_still: it has not moved at all, though its source is elsewhere.
        is_other: it went another way.
        likeness: cosine of the angle between the average, as it was, and its source.
        is_copy: it is its source now, bit for bit.
    """

    a: float
    is_still: bool
    is_other: bool
    likeness: float
    is_copy: bool


@dataclass(slots=True, kw_only=True)
class _Watched:
    kind: str
    pairs: Sequence[_Pair]
    kept: list[tuple[_Pair, Tensor, Tensor]] = field(default_factory=list)  # as the update left them
    n_moves: int = 0
    n_away: int = 0
    n_fast: int = 0
    n_elsewhere: dict[str, int] = field(default_factory=dict)
    n_behind: dict[str, int] = field(default_factory=dict)
    asked: str = ""  # whose other source is looked for
    is_over: bool = False


class Mixtures:
    """Follows averages of the trained model.

    Args:
        context: of the observer that finds them.
        add: takes a row.

    Attributes:
        is_empty: there are none.
    """

    def __init__(self, context: Context, add: Callable[[Reading], None]) -> None:
        self._context, self._add = context, add
        self._deferred = Deferred(context.ride)
        self.is_empty = True
        self._watched: list[_Watched] = []
        self._told = set[str]()  # kinds
        self._n_updates = 0

    def start(self, kind: str, pairs: Mapping[str, tuple[Tensor, Callable[[], Tensor | None]]]) -> None:
        """Begin to follow a copy of the parameters.

        Args:
            kind: what it is called.
            pairs: by name, a trained parameter and what gives its copy.
        """
        able = [
            (name, source, copy, now.numel())
            for name, (source, copy) in pairs.items()
            if (now := copy()) is not None and now.is_floating_point() and now.device == source.device
        ]
        able.sort(key=lambda each: -each[-1])
        followed = [
            _Pair(name=name, source=Ref(source), copy=copy)
            for name, source, copy, _ in able[:: -(-len(able) // PAIRS) or 1]
        ]
        is_known = kind in self._told or any(each.pairs[0].copy() is able[0][2]() for each in self._watched)
        if followed and not is_known:
            self._watched.append(_Watched(kind=kind, pairs=followed))
            self.is_empty = False

    def before_update(self, update: Update) -> None:
        """Judge how the averages have moved since the last update."""
        if self._deferred.waiting:
            self._deferred.read()
        with torch.no_grad():
            for watched in self._watched:
                kept, watched.kept = watched.kept, []
                if kept and update.check.is_finite:
                    self._look(watched, kept, update)

    def after_update(self, update: Update) -> None:
        """Keep samples of the averages and their sources as they are now."""
        self._watched = [each for each in self._watched if not each.is_over]
        self.is_empty = not self._watched
        self._n_updates += 1
        n = self._n_updates
        for watched in self._watched:
            if (n <= DENSE and watched.n_moves <= TIMES + 1) or n & (n - 1) == 0:
                watched.is_over = all(pair.copy() is None for pair in watched.pairs)  # nobody else holds it
                watched.kept = [
                    (pair, before.detach().clone(), towards.detach().clone())
                    for pair in watched.pairs
                    if (copy := pair.copy()) is not None and (source := pair.source()) is not None
                    and (before := sample(copy, ELEMENTS)) is not None
                    and (towards := sample(source, ELEMENTS)) is not None
                    and before.numel() == towards.numel() > 0
                ]  # fmt: skip

    def _look(self, watched: _Watched, kept: Sequence[tuple[_Pair, Tensor, Tensor]], update: Update) -> None:
        judged = [
            (pair, before, towards, now)
            for pair, before, towards in kept
            if (copy := pair.copy()) is not None
            and (now := sample(copy, ELEMENTS)) is not None
            and now.shape == before.shape and now.dtype == before.dtype and now.device == towards.device
        ]  # fmt: skip
        if not judged:
            return
        vectors = [_numbers(before, towards, now) for _, before, towards, now in judged]
        others = self._others(watched, judged, update)
        vectors += [numbers for _, numbers in others]
        step = update.step
        eps = [torch.finfo(now.dtype).eps for _, _, _, now in judged]
        names, other_names = [pair.name for pair, *_ in judged], [name for name, _ in others]

        def read(host: Sequence[float]) -> None:
            n = _NUMBERS
            moves = [move_of(host[i * n : (i + 1) * n], e) for i, e in enumerate(eps)]
            rest = host[len(eps) * n :]
            theirs = [move_of(rest[i * n : (i + 1) * n], eps[0]) for i in range(len(other_names))]
            self._judge(
                watched, dict(zip(names, moves, strict=True)), list(zip(other_names, theirs, strict=True)), step
            )

        self._deferred.add(torch.cat(vectors), read)

    def _others(
        self, watched: _Watched, judged: Sequence[tuple[_Pair, Tensor, Tensor, Tensor]], update: Update
    ) -> list[tuple[str, Tensor]]:
        """Compare the tensor that is asked about with each other trained parameter of its shape, as its source."""
        asked = next((each for each in judged if each[0].name == watched.asked), None)
        copy = None if asked is None else asked[0].copy()
        if asked is None or copy is None:
            return []
        pair, before, _, now = asked
        found = [p for p in update.parameters if p.shape == copy.shape and p is not pair.source()][:MOST_SOURCES]
        return [
            (self._context.label(p), _numbers(before, towards, now))
            for p in found
            if (towards := sample(p.detach(), ELEMENTS)) is not None and towards.device == now.device
        ]

    def _judge(self, watched: _Watched, moves: dict[str, Move], others: list[tuple[str, Move]], step: int) -> None:
        if watched.is_over or not any(not each.is_still for each in moves.values()):
            return  # the program updates it now and then
        watched.n_moves += 1
        straight = {name: each.a for name, each in moves.items() if not math.isnan(each.a)}
        towards = [a for a in straight.values() if a > 0]
        if not towards:
            watched.n_away = watched.n_away + 1 if straight else 0
            if watched.n_away == TIMES:
                self._tell(watched, next(iter(straight)), AWAY, statistics.median_low(straight.values()), step)
            return
        watched.n_away, usual = 0, statistics.median_low(towards)
        if self._n_updates >= WARM:
            is_fast = FAST <= usual <= 1.0 and not any(each.is_copy for each in moves.values())
            watched.n_fast = watched.n_fast + 1 if is_fast else 0
            if watched.n_fast == TIMES - 1:
                self._tell(watched, next(iter(straight)), FORGETS, usual, step)
                return
        if watched.n_moves == 1 and usual <= SLOW:
            unlike = [name for name, a in straight.items() if a > 0 and abs(moves[name].likeness) < UNLIKE]
            if 2 * len(unlike) > len(moves):
                self._tell(watched, unlike[0], FAR_AWAY, moves[unlike[0]].likeness, step)
                return
        for name, each in moves.items():
            is_other = each.is_other or abs(straight.get(name, usual) - usual) > STRAIGHT * usual
            watched.n_behind[name] = watched.n_behind.get(name, 0) + 1 if each.is_still else 0
            watched.n_elsewhere[name] = watched.n_elsewhere.get(name, 0) + 1 if is_other else 0
        other = next((name for name, each in others if abs(each.a - usual) <= STRAIGHT * usual), None)
        if other is not None:
            self._tell(watched, watched.asked, ELSEWHERE, usual, step, other)
            return
        watched.asked = next((name for name, n in watched.n_elsewhere.items() if n >= TIMES), "")
        behind = next((name for name, n in watched.n_behind.items() if n == TIMES + 1), None)
        if behind is not None:
            self._tell(watched, behind, LEFT_BEHIND, usual, step)

    def _tell(self, watched: _Watched, name: str, port: str, value: float, step: int, other: str = "") -> None:
        watched.is_over = True
        self._told.add(watched.kind)
        row = number_row(name or SITE, port, step, self._context.clock.next_order(), value, module=watched.kind)
        self._add(replace(row, op=other))


def _numbers(before: Tensor, towards: Tensor, now: Tensor) -> Tensor:
    """Return the products that `move_of` takes, as one tensor."""
    wide = wide_dtype(now.device)
    before, towards, now = before.to(wide), towards.to(wide), now.to(wide)
    move, way, left = now - before, towards - before, towards - now
    pairs = (
        (move, move), (way, way), (move, way), (before, before), (towards, towards), (before, towards), (left, left),
    )  # fmt: skip
    return torch.stack([(one * other).sum() for one, other in pairs])


def move_of(numbers: Sequence[float], eps: float) -> Move:
    """Judge what one tensor of an average did.

    Args:
        numbers: sums of squares of the move, of the way to the source, of their product; of the average before, of the
            source, of their product; of what is left of the way.
        eps: of its format.
    """
    moved, way, along, size, source, product, left = numbers
    likeness = product / math.sqrt(size * source) if size > 0 and source > 0 else 1.0
    if not all(map(math.isfinite, numbers)) or way <= 0:
        return Move(a=math.nan, is_still=False, is_other=False, likeness=likeness, is_copy=left == 0)
    is_long = moved > (ROUNDINGS * eps) ** 2 * size
    sine = math.sqrt(max(0.0, 1.0 - along * along / (moved * way))) if is_long else math.nan
    return Move(
        a=along / way if sine <= STRAIGHT else math.nan,
        is_still=moved == 0 and way > (ROUNDINGS * eps) ** 2 * size,
        is_other=is_long and sine > STRAIGHT,
        likeness=likeness,
        is_copy=left == 0,
    )
