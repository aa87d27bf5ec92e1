"""The smallest set that fixes: delta-debugging over a test that is (nearly) monotone, in an order of preference.

The shortest prefix of the candidates that fixes ends with an element that is needed; keep it, and look for the shortest
prefix before it that fixes together with what is kept. Each of k needed elements costs a galloping search from the
front and a binary search, at most 2 log2(n) + 2 tests: what stands in front is cheap to find.
Source: Junker, QuickXplain (AAAI 2004), with prefixes in place of halves because good guesses stand in front.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Fixes = Callable[[tuple[str, ...]], bool]


class OutOfBudget(Exception):
    """Raised by a test that may not be run again; `smallest` then returns the best set so far, `is_minimal` False."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest:
    """What a search found."""

    targets: tuple[str, ...] | None  # None: not even all candidates together fix it
    n_tests: int  # how often the test was run
    is_minimal: bool  # every element was tested to be needed; otherwise the budget ended first


class _Remembered:
    """Run the test once per set, and remember the smallest set that has fixed so far."""

    def __init__(self, fixes: Fixes, candidates: Sequence[str]) -> None:
        self._fixes, self._order = fixes, {name: i for i, name in enumerate(candidates)}
        self._known: dict[frozenset[str], bool] = {}
        self.n_tests = 0
        self.best: tuple[str, ...] | None = None

    def __call__(self, names: Sequence[str]) -> bool:
        key = frozenset(names)
        if key not in self._known:
            chosen = tuple(sorted(key, key=lambda name: self._order[name]))
            answer = self._fixes(chosen)
            self.n_tests += 1
            self._known[key] = answer
            if answer and (self.best is None or len(chosen) < len(self.best)):
                self.best = chosen
        return self._known[key]


def smallest(candidates: Sequence[str], fixes: Fixes, *, guess: int = 1) -> Smallest:
    """Find a set that fixes and of which nothing can be left out.

    For a monotone test (more never hurts) the set is minimal, and exactly the needed elements when there is only one
    minimal set. Otherwise it is still one that was tested and none of whose elements can be left out alone.

    Args:
        candidates: without repetition, preferred ones first.
        fixes: whether a set of candidates fixes it; that the empty set does not is taken for granted. May raise
            OutOfBudget: then the smallest set that has fixed so far is the answer.
        guess: how long the first prefix tried is, when it is known how many in front belong together.
    """
    test = _Remembered(fixes, candidates)
    try:
        targets = _reduced(candidates, test, guess)
        return Smallest(targets=targets, n_tests=test.n_tests, is_minimal=targets is not None)
    except OutOfBudget:
        return Smallest(targets=test.best, n_tests=test.n_tests, is_minimal=False)


def _reduced(candidates: Sequence[str], test: _Remembered, guess: int) -> tuple[str, ...] | None:
    kept: list[str] = []
    end = _shortest(candidates, kept, test, first=max(1, guess), known=None)
    if end is None:
        return None
    while end:
        kept.append(candidates[end - 1])
        if test(kept):
            break
        end = _shortest(candidates[: end - 1], kept, test, first=1, known=end - 1) or 0
    return _without_needless(kept, test)


def _shortest(
    candidates: Sequence[str], kept: Sequence[str], test: _Remembered, *, first: int, known: int | None
) -> int | None:
    """Return the length of the shortest prefix that fixes together with `kept`, at least 1; None if none does.

    Args:
        known: a length that is known to fix, for which no test is needed.
    """
    n = len(candidates) if known is None else known
    if not candidates:
        return None
    low, length = 0, min(first, n)
    while length < n and not test([*candidates[:length], *kept]):
        low, length = length, min(2 * length, n)
    if length == n and known is None and not test([*candidates[:n], *kept]):
        return None
    high = length
    while high - low > 1:
        middle = (low + high) // 2
        if test([*candidates[:middle], *kept]):
            high = middle
        else:
            low = middle
    return high


def _without_needless(kept: list[str], test: _Remembered) -> tuple[str, ...]:
    """Leave out what is not needed after all: for a test that is not monotone, or a set that was only inferred."""
    if not test(kept):  # only when the test contradicts itself
        kept = list(test.best or ())
    rests = ([other for other in kept if other != name] for name in kept if len(kept) > 1)
    smaller = next((rest for rest in rests if test(rest)), None)
    return tuple(kept) if smaller is None else _without_needless(smaller, test)
