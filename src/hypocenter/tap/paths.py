"""What came to a loss, and what of it carries gradient, back from the loss, in any framework.

Values flow through every operation; gradients stop at `detach()`, `stop_gradient`, `.data` and what runs under
`no_grad()`. Where a value that was computed from a trainable parameter goes into an operation that gradients do flow
through, and brings no gradient along, is a cut. Programs have cuts on purpose (targets, codes, teachers); what counts
is how many there were before. One kind nobody wants: a term that was made of gradients without a graph.

What lies inside a function with a backward of its own is no cut. Nothing is known of values that pass through Python
(`.item()`), and of integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.nouns import Source as Line

ADDS = frozenset({
    "add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "__sub__", "__rsub__", "__isub__", "rsub", "stack",
    "cat", "concat", "hstack",
})  # fmt: skip
_SCALES = frozenset({
    "mul", "mul_", "__mul__", "__rmul__", "__imul__", "div", "div_", "__div__", "__truediv__", "__itruediv__", "neg",
    "__neg__", "sum", "mean", "nanmean", "to", "float", "double", "half", "bfloat16", "type", "reshape", "view",
    "squeeze", "unsqueeze", "flatten", "clone", "contiguous", "__getitem__",
})  # fmt: skip
DETACHES = frozenset({"detach", "detach_", "__get__"})  # of `data`


@dataclass(frozen=True, slots=True)
class Counted:
    """An operation that gave whole numbers or truth values of what has a gradient: they have none."""

    site: str
    name: str
    line: Line | None


@dataclass(slots=True, eq=False)
class Node:
    """One operation on values that come from parameters.

    Attributes:
        given: what it was given, and whether that has a gradient.
        constants: of what adds: what has none, if other summands have one.
        counts: of what adds: what numbers that are made of indices or truth values alone came from, and these.
        gives_gradients: it is `torch.autograd.grad`.
        line: of that, in the program.
    """

    site: str
    name: str
    is_recorded: bool  # by autograd
    given: Sequence[tuple[Source, bool]] = ()
    constants: Sequence[tuple[Source, Any]] = ()
    counts: Sequence[tuple[Counted, Any]] = ()
    gives_gradients: bool = False
    line: Line | None = None


Source = Node | int  # what made a value, or the number of a parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """From parameters to a loss.

    Attributes:
        n_values: how many values were given to operations on the way.
        n_gradients: how many of them brought their gradient.
        cuts: the module that each cut is in, and the operation that was given the value.
        cut_off: numbers of the parameters that are behind a cut.
        reached: of those that gradients come to.
        constant: what gave the gradients that a term of the loss is made of, which has none itself.
        counted: what gave the indices or truth values that a term of the loss is made of alone.
    """

    n_values: int
    n_gradients: int
    cuts: tuple[tuple[str, str], ...]
    cut_off: tuple[int, ...]
    reached: tuple[int, ...] = ()
    constant: Node | None = None
    counted: Counted | None = None


def paths_back(ends: Sequence[Source]) -> Paths | None:
    """Of the loss that these gave, with gradients; None where nothing is known of it."""
    if not ends:
        return None
    reached, n_gradients, cuts = _gradients(ends)
    behind, _ = _values([source for _, source in cuts])
    return Paths(
        n_values=_values(ends)[1], n_gradients=n_gradients, cuts=tuple((node.site, node.name) for node, _ in cuts),
        cut_off=_numbers(behind), reached=_numbers(reached), constant=constant_term(ends),
        counted=counted_term(ends),
    )  # fmt: skip


def _gradients(ends: Iterable[Source]) -> tuple[set[Source], int, list[tuple[Node, Source]]]:
    """Back along gradients: all they come to, how many values brought theirs, and which did not, with their users."""
    n, cuts, found, waiting = 0, list[tuple[Node, Source]](), set[Source](), list(ends)
    while waiting:
        source = waiting.pop()
        if source in found:
            continue
        found.add(source)
        if isinstance(source, int):
            continue
        for other, has_gradient in source.given:
            if has_gradient or not source.is_recorded:  # inside an autograd.Function all of it is followed
                n += 1
                waiting.append(other)
            else:
                cuts.append((source, other))
    return found, n, cuts


def constant_term(ends: Iterable[Source]) -> Node | None:
    """What gave the gradients that a term of the loss is made of, where that term has none itself; else None.

    Such a term is a constant that was added to the loss: it trains nothing. What is scaled by gradients, or made of
    weights that were moved along them, has a gradient of its own, and is not spoken of; nor is what the program has
    detached itself after it took them.
    """
    for node in _terms(ends):
        for source, value in node.constants:
            if (taken := _taken(source)) is not None and bool(value.count_nonzero()):
                return taken
    return None


def counted_term(ends: Iterable[Source]) -> Counted | None:
    """What gave the indices or truth values that a term of the loss, one number, is made of alone; None without one.

    Where another term was detached on purpose (the value of a loss whose gradient is another's) it may be meant.
    """
    terms = list(_terms(ends))
    if any(node.constants for node in terms):
        return None
    counts = [(counted, value) for node in terms for counted, value in node.counts if value.numel() == 1]
    return next((counted for counted, value in counts if bool(value.count_nonzero())), None)


def _terms(ends: Iterable[Source]) -> Iterator[Node]:
    """The operations that a loss is added up in, and scaled."""
    waiting, found = [each for each in ends if isinstance(each, Node)], set[Node]()
    while waiting:
        node = waiting.pop()
        live = [source for source, has_gradient in node.given if has_gradient]
        if node in found or not (node.name in ADDS or (node.name in _SCALES and len(live) == 1)):
            continue
        found.add(node)
        yield node
        waiting += [source for source in live if isinstance(source, Node)]


def _taken(term: Source) -> Node | None:
    """What gave the gradients that this is made of; not beyond what was detached on purpose."""
    waiting, found = [term], set[Source]()
    while waiting:
        source = waiting.pop()
        if source in found or isinstance(source, int) or not source.is_recorded:
            continue
        found.add(source)
        if source.gives_gradients:
            return source
        if source.name not in DETACHES:
            waiting += [other for other, _ in source.given]
    return None


def _values(ends: Iterable[Source]) -> tuple[set[Source], int]:
    """All that these were computed from, and how many values were given in all."""
    n, found, waiting = 0, set[Source](), list(ends)
    while waiting:
        source = waiting.pop()
        if source not in found:
            found.add(source)
            if isinstance(source, Node):
                n += len(source.given)
                waiting += [other for other, _ in source.given]
    return found, n


def _numbers(sources: Iterable[Source]) -> tuple[int, ...]:
    """Of the parameters among them, in order."""
    return tuple(sorted(each for each in sources if isinstance(each, int)))
