"""Blame by gain: where values first became larger than an operator usually makes them of what it reads."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hypocenter.tap.gains import Key, Sized

LEAST = 2  # healthy traces that an operator must have been seen in
MARGIN = 1.0  # octaves above the largest in any of them, and at least the distance between largest and smallest
_WIDEST = 4.0  # octaves of that distance that count: an operator that is idle in some steps has no smallest
_FARTHEST = 4096.0  # octaves above what was zero in all of them: as far as the formats of numbers reach
_OWN = 3.0  # octaves by which more has to come out than what is too large already in what it read explains
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "convolution", "dot", "mv", "einsum"})
_LINEAR = _PRODUCTS | {"mul", "div"}  # in each of the tensors that they read


@dataclass(slots=True)
class _Range:
    lowest: float
    highest: float
    gain: float  # octaves: of the largest so far, what it gave over what it read
    n_read: int
    n: int = 1

    def add(self, octave: float, gain: float, n_read: int) -> None:
        if octave > self.highest:
            self.gain = gain
        self.lowest, self.highest = min(self.lowest, octave), max(self.highest, octave)
        self.n_read, self.n = max(self.n_read, n_read), self.n + 1


class Usual:
    """The sizes of values that healthy steps had, by operator."""

    def __init__(self) -> None:
        self._ranges: dict[Key, list[_Range]] = {}  # of each tensor that it gives
        self._gains: dict[object, float] = {}  # the largest of an operator, wherever it is
        self._places: set[Key] = set()  # that operators ran at
        self.n = 0  # healthy traces

    def learn(self, sized: Mapping[int, Sized]) -> None:
        """Take in the trace of a healthy step."""
        self.n += 1
        for each in sized.values():
            self._places.add(each.key[:-1])
            read = largest_read(each, sized)
            gain = each.octave - read
            if math.isfinite(gain):
                self._gains[each.key[0]] = max(gain, self._gains.get(each.key[0], -math.inf))
            known = self._ranges.get(each.key)
            if known is None or len(known) != len(each.octaves):
                self._ranges[each.key] = [_Range(o, o, o - read, each.n_read) for o in each.octaves]
            else:
                for part, octave in zip(known, each.octaves, strict=True):
                    part.add(octave, octave - read, each.n_read)

    def of(self, each: Sized, place: int) -> _Range | None:
        """Return what is usual of one of the tensors that it gives; None if it was not seen often enough."""
        known = self._ranges.get(each.key, ())
        return known[place] if place < len(known) and known[place].n >= LEAST else None

    def is_new(self, each: Sized) -> bool:
        """Return whether enough healthy steps are known, and none of them ran this operator at its place."""
        return self.n >= LEAST and each.key[:-1] not in self._places

    def above(self, each: Sized, sized: Mapping[int, Sized]) -> float:
        """Return by how many octaves it is larger than usual; 0 if that is within its usual spread."""
        return self.largest(each, sized)[0]

    def largest(self, each: Sized, sized: Mapping[int, Sized]) -> tuple[float, int]:
        """Return the same, and which of the tensors that it gives is the farthest above.

        What no healthy step had at this place is compared with what it read, as the same operator is elsewhere.
        """
        found = [(self.above_at(each, place, sized), -place) for place in range(len(each.octaves))]
        above, place = max(found, default=(0.0, 0))
        return above, -place

    def above_at(self, each: Sized, place: int, sized: Mapping[int, Sized]) -> float:
        """Return how far one of the tensors that it gives is above the usual, in octaves; 0 if within its spread."""
        octave = each.octaves[place]
        if not math.isfinite(octave):
            return 0.0
        known = self.of(each, place)
        if known is None:
            read = largest_read(each, sized)
            above = octave - read - max(self._gains.get(each.key[0], 0.0), 0.0)
            return above if math.isfinite(read) and above > MARGIN else 0.0
        above = min(octave - known.highest, _FARTHEST)
        return above if above > max(MARGIN, min(known.highest - known.lowest, _WIDEST)) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Where values began to be larger than usual."""

    producer: int  # an operator's index, or -1 - that of a tensor from outside
    above: float  # octaves
    in_all: float  # the same, over all the times that the operator runs at its place: a loop


def _name(each: Sized) -> str:
    """Return the name of an operator, such as "mul"; for a tensor from outside what it is."""
    return str(each.key[0]).removeprefix("aten.").partition(".")[0].rstrip("_")


def is_amplifying(each: Sized, sized: Mapping[int, Sized], usual: Usual, *, is_forward: bool) -> bool:
    """Return whether an operator itself makes values larger: more than choosing or adding up others can explain.

    One that scales a tensor by a number chooses nothing: there a larger factor than usual is enough.

    What an operator chooses from its inputs, or an average of them, is never larger than they are. A sum, a product of
    matrices in backward, is as large as its terms agree: that says nothing about it, unless it has more terms.
    """
    place = usual.largest(each, sized)[1]
    gain, known = each.octaves[place] - largest_read(each, sized), usual.of(each, place)
    name = _name(each)
    if name in ("mul", "div") and each.is_scaling and known is not None and gain > known.gain + MARGIN:
        return True
    if gain <= 0.5:
        return False
    if name in _PRODUCTS or "convolution" in name or "attention" in name:
        return is_forward
    if each.n_given >= each.n_read:
        return True
    return known is None or each.n_read > 2 * known.n_read


def large_inputs(each: Sized, sized: Mapping[int, Sized], usual: Usual) -> Sequence[int]:
    """Return the producers of those tensors that it read that are larger than usual themselves."""
    return [producer for producer, above in _inputs_above(each, sized, usual) if above]


def own_part(each: Sized, sized: Mapping[int, Sized], usual: Usual) -> float:
    """Return the octaves above the usual that do not come from what an operator read; 0 if all may.

    Backward is linear in gradients: with these larger by a factor, it gives more by the same factor. So are products.
    Of what read nothing large it is all; of other operators little says nothing, but in a loop it adds up.
    """
    above = usual.above(each, sized)
    large = [(producer, octaves) for producer, octaves in _inputs_above(each, sized, usual) if octaves]
    if not above or not large:
        return above
    own = above - sum(octaves for _, octaves in large)
    is_linear = _name(each) in _LINEAR or all(p >= 0 and sized[p].is_gradient for p, _ in large)
    return max(own, 0.0) if is_linear else 0.0


def begins(each: Sized, sized: Mapping[int, Sized], usual: Usual) -> bool:
    """Return whether it may have begun there: what it read is as usual, or explains little of what it gave."""
    own = own_part(each, sized, usual)
    return own > _OWN or (own > 0 and not large_inputs(each, sized, usual))


def _inputs_above(each: Sized, sized: Mapping[int, Sized], usual: Usual) -> Sequence[tuple[int, float]]:
    read = ((p, place) for p, place in each.inputs if p in sized and place < len(sized[p].octaves))
    return [(p, usual.above_at(sized[p], place, sized)) for p, place in read]


def new_operators(targets: Iterable[int], sized: Mapping[int, Sized], usual: Usual) -> Sequence[int]:
    """Return operators before these that no healthy step ran, and that read only what healthy steps have too."""
    found: list[int] = []
    for producer in _before(targets, sized):
        each = sized[producer]
        read = [sized[p] for p, _ in each.inputs if p in sized]
        if producer >= 0 and usual.is_new(each) and not any(usual.is_new(r) for r in read if not r.is_number):
            found.append(producer)
    return sorted(found)


def _before(targets: Iterable[int], sized: Mapping[int, Sized]) -> set[int]:
    waiting, seen = list(targets), set[int]()
    while waiting:
        producer = waiting.pop()
        if producer in sized and producer not in seen:
            seen.add(producer)
            waiting += (p for p, _ in sized[producer].inputs)
    return seen


def suspects(
    targets: Iterable[int], sized: Mapping[int, Sized], usual: Usual, amplifying: Mapping[int, bool]
) -> Sequence[Suspect]:
    """Walk back from values that are larger than usual to those that began it, the largest step first.

    Args:
        targets: producers of the loss, or of gradients.
        sized: of the step, by producer.
        usual: of healthy steps.
        amplifying: whether an operator made values larger itself; tensors from outside are not among them.

    Returns:
        Operators that made large values of usual ones, and tensors that were too large from the start. By how much is
        not known of what was zero before: it comes last.
    """
    found: dict[Key, list[tuple[int, float]]] = defaultdict(list)  # by place
    in_all: dict[Key, float] = defaultdict(float)
    waiting, seen = list(targets), set[int]()
    while waiting:
        producer = waiting.pop()
        each = sized.get(producer)
        if producer in seen or each is None:
            continue
        seen.add(producer)
        if not usual.above(each, sized):
            continue
        waiting += large_inputs(each, sized, usual)
        own, place = own_part(each, sized, usual), each.key[:-1] if producer >= 0 else (producer,)
        in_all[place] += own
        if producer < 0 or (amplifying.get(producer, False) and begins(each, sized, usual)):
            found[place].append((producer, own))
    first = [
        Suspect(producer=min(of)[0], above=max(own for _, own in of), in_all=in_all[place])
        for place, of in found.items()
    ]
    return sorted(first, key=lambda s: (s.above >= _FARTHEST, -round(s.above), max(s.producer, -1)))


def largest_read(each: Sized, sized: Mapping[int, Sized]) -> float:
    """Return the octave of the largest tensor that it read; -inf if none has a size."""
    found = [
        sized[producer].octaves[place] for producer, place in each.inputs if _is_tensor(sized.get(producer), place)
    ]
    return max((octave for octave in found if octave < math.inf), default=-math.inf)


def _is_tensor(made: Sized | None, place: int) -> bool:
    return made is not None and not made.is_number and place < len(made.octaves)
