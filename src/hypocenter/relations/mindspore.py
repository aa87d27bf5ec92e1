"""What must not matter to a micro-batch of MindSpore is changed in replays: other samples, later tokens.

The relations are those of hypocenter.relations (`samples`, `future`), asked of less: of the arguments of the function
that is differentiated, of outputs of cells, and without the forms that excuse a model of torch's. Where one of these
may be meant, nothing is asked.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Container, Generator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeAlias

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore import mint, nn  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from hypocenter.formats import FORMATS
from hypocenter.nouns import Source
from hypocenter.relations import mindspore_derivative as derivative
from hypocenter.relations import scores as scores_of
from hypocenter.relations.scores import Wrong
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.mindspore.engine import Replayer
from hypocenter.replay.mindspore.host import flat, is_floating
from hypocenter.tap.frame_variables import variables_of
from hypocenter.tap.mindspore.gradients import dtype_name, host
from hypocenter.tap.mindspore.tape import GradCall
from hypocenter.tap.source import source_of, user_frame

TOLERANCE = 1e-4  # relative, L2: see hypocenter.relations.subject
_ROUNDINGS = 4  # of the lowest format in use
_AT_MOST_BYTES = 64 << 20  # of what cells are given and give in one replay, of which two or three are held
_LEAST_PLACES = 4  # of a sequence
_AGREE = 0.99  # of labels, that are the next token
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, mint.nn.Dropout)
_MEETING = ("Attention", "Transformer", "RNN", "GRU", "LSTM", "Graph", "GCN", "GAT", "Message")

_CONTRACTS = {"cross_entropy": scores_of.given_to_cross_entropy, "nll_loss": scores_of.given_to_nll_loss}
_HOMES = ("mindspore.ops", "mindspore.mint.nn.functional")

Array: TypeAlias = NDArray[Any]
Part: TypeAlias = Callable[[Array], "Array | None"]
"""Of an output what has to stay; None: it does not show it."""


class CannotTell(Exception):
    """Raised where a relation cannot be asked of this micro-batch; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One change of arguments, by id, and the part of the outputs that has to stay."""

    code: str
    relation: str
    changed: dict[int, Array]
    part: Part
    what: str
    whom: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A relation that does not hold, and the cell that shows it first: "" is the model itself."""

    trial: Trial
    module: str
    kind: str
    size: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Misused:
    """A loss function that is given what it is not made for, or a backward that is wrong, and its line in the code."""

    wrong: Wrong
    source: Source | None
    code: str = "HC251"
    size: float = 0.0


@dataclass(slots=True)
class Looked:
    """What came of asking the relations."""

    losses: list[Misused] = field(default_factory=list)

    broken: list[Shown] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    not_asked: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """The beginning of a cell's call with its inputs, or its end with its outputs."""

    is_end: bool
    cell: Any
    around: Any
    values: tuple[Array, ...]
    shapes: tuple[tuple[int, ...], ...] = ()  # of all tensors that go in


def look(replayer: Replayer, call: GradCall, cells: Sequence[tuple[str, Any]], known: Container[str] = ()) -> Looked:
    """Ask both relations, `samples` and `future`, and look at what loss functions are given.

    Args:
        cells: (name, cell) of the models.
        known: relations whose answer is known.

    Raises:
        ReplayImpossible: the micro-batch cannot be done again.
    """
    looked, targets = Looked(), list[Array]()
    with _hearing_losses(looked.losses, targets):
        events = _heard(replayer, call, {})
    again = _heard(replayer, call, {})
    limit = max(TOLERANCE, _ROUNDINGS * max((_eps(p) for p in call.weights), default=0.0))
    if (noise := _first(events, again, lambda array: array, limit / 10)) is not None:
        raise ReplayImpossible(f"{type(noise[0].cell).__name__} gives something else each time")
    looked.losses += _wrong_backwards(replayer, events)
    names = {id(cell): name for name, cell in cells}
    asked = (
        ("samples", lambda: _samples(call, [cell for _, cell in cells], events)),
        ("future", lambda: _future(call, targets)),
    )
    for relation, ask in asked:
        if relation in known:
            continue
        try:
            trial, otherwise = ask()
            found = _first(events, _heard(replayer, call, trial.changed), trial.part, limit)
            if found is None:
                looked.held.append(relation)
                continue
            for other in otherwise:
                if _first(events, _heard(replayer, call, other.changed), other.part, limit) is None:
                    raise CannotTell(f"its inputs may be laid out otherwise: {other.what} leaves {other.whom}")
            event, size = found
            at = event.cell if event.is_end else event.around
            kind = type(at).__name__ if at is not None else ""
            shown = Shown(trial=trial, module=names.get(id(at), ""), kind=kind, size=size, limit=limit)
            looked.broken.append(shown)
        except CannotTell as why:
            looked.not_asked[relation] = str(why)
    return looked


def _wrong_backwards(replayer: Replayer, events: Sequence[_Event]) -> list[Misused]:
    """Check the first call of each class that has a backward of its own; return the backwards that are wrong."""
    first = {type(e.cell): e for e in reversed(events) if not e.is_end and derivative.is_own(e.cell)}
    found: list[Misused] = []
    for kind, event in first.items():
        if len(event.values) != len(event.shapes):
            continue  # it is given more than floats
        with replayer.paused():
            error = derivative.error_of(event.cell, event.values)
        if error is not None and error > derivative.LIMIT:
            code = kind.bprop.__code__
            line = source_of(code.co_filename, code.co_firstlineno)
            wrong = derivative.wrong_derivative(event.cell, error)
            found.append(Misused(wrong=wrong, source=line, code="HC253", size=error))
    return found


def _eps(parameter: Any) -> float:
    form = FORMATS.get(dtype_name(parameter))
    return form.eps if form is not None else 0.0


def _heard(replayer: Replayer, call: GradCall, changed: dict[int, Array]) -> list[_Event]:
    events: list[_Event] = []
    replaced = {key: ms.Tensor(values) for key, values in changed.items()}
    replayer.run(call, around=_hearing(events), changed=replaced, must_leave_no_trace=True)
    return events


@contextlib.contextmanager
def _hearing(events: list[_Event]) -> Generator[None, None, None]:
    """Within this block calls of cells are noted, with copies of what goes in and comes out.

    Dropout passes on what it is given: its masks do not repeat on every CPU.
    """
    original = nn.Cell.__call__
    stack: list[Any] = []
    left = [_AT_MOST_BYTES]

    def taken(tree: Any) -> tuple[Array, ...]:
        found = tuple(np.array(host(t)) for t in flat(tree) if is_floating(t) and t.size)
        left[0] -= sum(array.nbytes for array in found)
        if left[0] < 0:
            raise ReplayImpossible("what its cells give is too large to be compared")
        return found

    def __call__(cell: Any, *args: Any, **kwargs: Any) -> Any:
        around = stack[-1] if stack else None
        shapes = tuple(tuple(t.shape) for t in flat((args, kwargs)))
        events.append(_Event(is_end=False, cell=cell, around=around, values=taken((args, kwargs)), shapes=shapes))
        stack.append(cell)
        try:
            output = args[0] if isinstance(cell, _DROPOUTS) and args else original(cell, *args, **kwargs)
        finally:
            stack.pop()
        events.append(_Event(is_end=True, cell=cell, around=around, values=taken(output)))
        return output

    nn.Cell.__call__ = __call__
    try:
        yield
    finally:
        nn.Cell.__call__ = original


@contextlib.contextmanager
def _hearing_losses(found: list[Misused], targets: list[Array]) -> Generator[None, None, None]:
    """Within this block calls of the loss functions of `ops` and `mint` are looked at, however they are reached.

    Args:
        targets: gets the indices that they ask for.
    """
    functions = [(name, getattr(sys.modules.get(home), name, None)) for home in _HOMES for name in _CONTRACTS]
    names = {inspect.unwrap(each).__code__: name for name, each in functions if each is not None}

    def hear(frame: FrameType, event: str, _: object) -> None:
        name = names.get(frame.f_code) if event == "call" else None
        if name is not None:
            _look_at(name, frame, found)
            target: Any = variables_of(frame).get(frame.f_code.co_varnames[1])
            if isinstance(target, ms.Tensor) and not is_floating(target):
                targets.append(host_of(target))

    if sys.getprofile() is not None:  # of the user's
        yield
        return
    sys.setprofile(hear)
    try:
        yield
    finally:
        sys.setprofile(None)


def _look_at(name: str, frame: FrameType, found: list[Misused]) -> None:
    scores: Any = variables_of(frame).get(frame.f_code.co_varnames[0])
    if not isinstance(scores, ms.Tensor) or not is_floating(scores) or not scores.ndim or scores.size < 2:
        return
    form = FORMATS.get(dtype_name(scores))
    limit = max(scores_of.TOLERANCE, scores_of.ROUNDINGS * (form.eps if form is not None else 0.0))
    wrong = _CONTRACTS[name](host(scores).astype(np.float32), limit)
    if wrong is not None and wrong.title not in {each.wrong.title for each in found}:
        line = user_frame(frame.f_back)
        source = None if line is None else source_of(line.f_code.co_filename, line.f_lineno)
        found.append(Misused(wrong=wrong, source=source))


def _first(before: list[_Event], after: list[_Event], part: Part, limit: float) -> tuple[_Event, float] | None:
    """Return the first event that has moved, and how far the model's outputs moved; None if these did not."""
    pairs = list(zip(before, after, strict=False))
    if len(before) != len(after) or any((o.is_end, o.cell) != (n.is_end, n.cell) for o, n in pairs):
        raise CannotTell("the model takes another way")
    sizes = [_moved(old, new, part) for old, new in pairs]
    ends = [size for (old, _), size in zip(pairs, sizes, strict=True) if old.is_end and old.around is None and size]
    if not ends or max(ends) <= limit:
        return None
    at = next(i for i, size in enumerate(sizes) if size is not None and size > limit)
    return pairs[at][0], max(ends)


def _moved(old: _Event, new: _Event, part: Part) -> float | None:
    """Return the largest relative distance (L2) of the parts that have to stay; None if no array shows them."""
    sizes: list[float] = []
    for a, b in zip(old.values, new.values, strict=False):
        kept, now = part(a), part(b) if a.shape == b.shape else None
        if kept is None or now is None or not kept.size:
            continue
        with np.errstate(invalid="ignore"):  # a mask of -inf less itself
            away = np.linalg.norm((now.astype(np.float64) - kept).reshape(-1))
        usual = np.linalg.norm(kept.astype(np.float64).reshape(-1))
        if np.isfinite(away) and away:
            sizes.append(float(away / max(usual, np.finfo(np.float32).tiny)))
        else:
            sizes.append(0.0)
    return max(sizes, default=None)


def given_to(call: GradCall) -> list[Any]:
    """Return the tensors that the function was called with, numbers aside."""
    args = call.args[:-1] if getattr(call.operation, "sens_param", False) else call.args
    return [t for t in flat((args, dict(call.kwargs))) if not isinstance(t, ms.Parameter) and t.ndim]


def _samples(call: GradCall, cells: Sequence[Any], events: Sequence[_Event]) -> tuple[Trial, list[Trial]]:
    """Return a trial in which each second row takes its neighbour's values, and trials for other layouts of inputs."""
    given = given_to(call)
    sizes = {t.shape[0] for t in given}
    if len(sizes) != 1 or len(given) < 2 or (n := sizes.pop()) < 2:
        raise CannotTell("which dimension is the batch is not known")
    if any(n in t.shape[1:] for t in given):
        raise CannotTell("another dimension has as many places as there are samples")
    if any("BatchNorm" in type(cell).__name__ and cell.training for cell in cells):
        raise CannotTell("BatchNorm mixes samples by definition")
    is_sequence = any(t.ndim > 2 or (t.ndim == 2 and not is_floating(t)) for t in given)
    meeting = next((type(c).__name__ for c in cells if _lets_meet(c, n)), "")
    if meeting and not is_sequence:
        raise CannotTell(f"in {meeting} samples may be meant to meet")
    outermost = [shape for each in events if not each.is_end and each.around is None for shape in each.shapes if shape]
    if any(shape[0] != n or (len(shape) == 2 and shape[1] == n) for shape in outermost):
        raise CannotTell("the model is given a tensor that may say which samples belong together")
    trial = _by_axis(given, 0, n)
    inputs = [t for t in given if t.ndim > 1]
    seconds = {t.shape[1] for t in inputs}
    if inputs and len(seconds) == 1 and len(inputs) == len(given) and (m := seconds.pop()) > 1:
        return trial, [_by_axis(inputs, 1, m)]
    return trial, []


def _lets_meet(cell: Any, n: int) -> bool:
    """Return whether samples may be meant to meet in this cell: by its name, or because it holds an n by n matrix."""
    held = (value for value in vars(cell).values() if isinstance(value, ms.Tensor) or hasattr(value, "indices"))
    parameters = (p for p in cell._params.values() if p is not None)
    is_held = any(tuple(getattr(each, "shape", ())) == (n, n) for each in (*held, *parameters))
    return is_held or any(each in type(cell).__name__ for each in _MEETING)


def _by_axis(given: Sequence[Any], axis: int, n: int) -> Trial:
    order = np.arange(n)
    order[::2] = np.minimum(order[::2] + 1, n - 1)
    if n % 2:
        order[-1] = n - 2
    changed = {id(t): np.take(host_of(t), order, axis) for t in given}
    if all(np.array_equal(changed[id(t)], host_of(t)) for t in given):
        raise CannotTell("all samples are the same")

    def rows(array: Array) -> Array | None:
        if array.ndim <= axis or n in array.shape[axis + 1 :]:
            return None
        if axis:
            return array[:, 1::2] if array.shape[1] == n else None
        return array.reshape(n, -1)[1::2] if array.shape[0] and array.shape[0] % n == 0 else None

    what = "every second sample replaced" if axis == 0 else "every second place of the second dimension replaced"
    whom = "the outputs of the others" if axis == 0 else "the others as they are"
    return Trial(code="HC241", relation="samples", changed=changed, part=rows, what=what, whom=whom)


def _future(call: GradCall, targets: Sequence[Array]) -> tuple[Trial, list[Trial]]:
    """Return a trial that replaces the tokens behind the middle, where the loss asks for the tokens one place further.

    Args:
        targets: what loss functions were asked for: the program may cut tokens and labels out of one argument.
    """
    tables = [t for t in given_to(call) if t.ndim == 2 and not is_floating(t) and t.shape[1] >= _LEAST_PLACES]
    pairs = [(ids, ids.shape[1]) for ids in tables for labels in tables if _is_next(ids, labels)]
    pairs = pairs or [(t, t.shape[1] - 1) for t in tables if any(_is_cut_from(t, target) for target in targets)]
    if not pairs:
        raise CannotTell("the loss does not ask for the next token of an argument")
    ids, length = pairs[0]
    n = ids.shape[0]
    values, cut = host_of(ids), length // 2
    new = values.copy()
    new[:, cut:] = np.roll(values, 1, axis=0)[:, cut:] if n > 1 else values[:, cut:][:, ::-1]
    if np.array_equal(new, values):
        raise CannotTell("all samples are the same")

    def earlier(array: Array) -> Array | None:
        if array.shape[:2] == (n, length):
            return array[:, :cut]
        return array.reshape(n, length, -1)[:, :cut] if array.ndim > 1 and array.shape[0] == n * length else None

    what, whom = f"tokens from place {cut} on replaced", "the outputs before"
    return Trial(code="HC242", relation="future", changed={id(ids): new}, part=earlier, what=what, whom=whom), []


def _is_cut_from(ids: Any, target: Array) -> bool:
    """Return whether the target is all tokens but the first of each row, or places that do not count."""
    wanted = host_of(ids)[:, 1:]
    if target.size != wanted.size:
        return False
    counts = target.reshape(wanted.shape) >= 0
    return bool(counts.any()) and (target.reshape(wanted.shape) == wanted)[counts].mean() >= _AGREE


def _is_next(ids: Any, labels: Any) -> bool:
    if ids is labels or ids.shape != labels.shape:
        return False
    a, b = host_of(ids), host_of(labels)
    counts = b[:, :-1] >= 0
    is_next = (b[:, :-1] == a[:, 1:])[counts]
    is_same = (b == a)[b >= 0]
    return bool(is_next.size) and is_next.mean() >= _AGREE and is_same.mean() < _AGREE


def host_of(tensor: Any) -> Array:
    """Return the tensor as an array of its own format."""
    return tensor.asnumpy()
