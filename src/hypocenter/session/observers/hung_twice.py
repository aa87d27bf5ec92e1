"""The law "hooks": what hangs twice on a module or a parameter acts no more than once. For HC266.

A replay runs the hooks of the program too, so no law that does a step again sees one that was registered once more.
Two hooks are one if they have the same code and the same values in it. Such a pair is harmless where the second changes
nothing (it listens, or limits what is limited already): the last micro-batch is done again as it is, and with the
second one called on copies, so that it draws and counts what it did, and what it returns thrown away.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Generator, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from hypocenter import schedule
from hypocenter.config import Config
from hypocenter.detect.law_rows import HUNG_TWICE
from hypocenter.nouns import Reading, replace
from hypocenter.replay.engine import ReplayImpossible
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.audit import tolerance_of
from hypocenter.session.observers.grid import name_of
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.summary.reducers.torch_float64 import in_float64
from hypocenter.tap.free_memory import why_no_room
from hypocenter.tap.gradients import local, to_host
from hypocenter.tap.source import source_of
from hypocenter.tap.tree import replace_tensors

MOST_LOOKS = 64  # then rarer: a program that registers another number of hooks in each step
MOST_PROOFS = 4  # looks with replays
OF_ALL = 0.1  # of the tolerance of one gradient: that of all
DEEP = 4  # functions in functions that are compared
_OF_MODULES = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}
_PLAIN = (bool, int, float, complex, str, bytes, type(None))

Hooks = MutableMapping[int, Callable[..., Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hung:
    """A hook that hangs more than once.

    Attributes:
        site: the module or parameter, as the user names it.
        kind: of hook, in words.
        hooks: all that hang there.
        keys: its own, in the order in which they are called.
    """

    site: str
    kind: str
    hooks: Hooks
    keys: Sequence[int]


class HungTwice(Observer):
    """Writes a row for the first hook that hangs twice, and acts twice."""

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Return whether replays are allowed: without one nothing can be said."""
        return config.replay

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_due = schedule.parse("doubling")
        self._n_registered = -1  # handles that torch has given out so far
        self._n_usual = 0  # since the update before; modules with full backward hooks take some in each forward
        self._n_looks = 0
        self._n_proofs = 0
        self._known: set[tuple[str, str, int]] = set()  # that do no harm

    def before_update(self, update: Update) -> None:
        """Look when something was registered since the last update that is not in each step."""
        n_new, was = RemovableHandle.next_id - self._n_registered, self._n_usual
        self._n_registered, self._n_usual = RemovableHandle.next_id, n_new
        is_due = n_new != was and (self._n_looks < MOST_LOOKS or self._is_due(update.step))
        if not is_due or self._n_proofs >= MOST_PROOFS:
            return
        if not update.microbatches or update.skipped or not update.check.is_finite:
            self._n_usual = -1  # at the next one
            return
        self._n_looks += 1
        found = [each for each in self._twice() if (each.site, each.kind, len(each.keys)) not in self._known]
        if found:
            self._n_proofs += 1
            with self.context.audits.spending():
                self._prove(update, found)

    def _twice(self) -> Iterator[_Hung]:
        for root in self.context.names.roots():
            for module in root.modules():
                for table, kind in _OF_MODULES.items():
                    if len(hooks := vars(module).get(table) or ()) > 1:
                        yield from _alike(self.context.names.module_name(module) or type(module).__name__, kind, hooks)
        for name, parameter in self.context.names.parameters():
            if len(hooks := parameter._backward_hooks or ()) > 1:  # type: ignore[arg-type]
                yield from _alike(name, "gradient hook", hooks)  # type: ignore[arg-type]

    def _prove(self, update: Update, found: Sequence[_Hung]) -> None:
        """Write a row for the first that changes a gradient."""
        parameters = [p for p in update.parameters if p.requires_grad]
        usual = None if why_no_room(parameters) else self._gradients(update, parameters, [])
        if usual is None:
            return
        is_told = self._moves(usual, update, parameters, found) and not self._moves(usual, update, parameters, [])
        for each in found if is_told else ():
            if (moved := self._moves(usual, update, parameters, [each])) is not None:
                self._n_proofs = MOST_PROOFS
                self.rows.append(self._row(each, moved, update.step))
                return
        self._known |= {(each.site, each.kind, len(each.keys)) for each in found}

    def _row(self, hung: _Hung, moved: tuple[Tensor, float], step: int) -> Reading:
        hook = hung.hooks[hung.keys[0]]
        while isinstance(hook, functools.partial):
            hook = hook.func
        order = self.context.clock.next_order()
        row = number_row(hung.site, HUNG_TWICE, step, order, moved[1], module=hung.kind, call=len(hung.keys))
        code = getattr(hook, "__code__", None)
        source = code and source_of(code.co_filename, code.co_firstlineno, code.co_name)
        name = getattr(hook, "__qualname__", type(hook).__name__)
        return replace(row, op=name, source=source, names=(self.context.label(moved[0]),))

    def _moves(
        self, usual: Sequence[Tensor | None], update: Update, parameters: Sequence[Tensor], found: Sequence[_Hung]
    ) -> tuple[Tensor, float] | None:
        """Return the parameter whose gradient moves most without what the later ones of these do, and how far.

        Beyond rounding: in its own size, and in that of all of them, for a gradient may be nothing but rounding.
        """
        alone = self._gradients(update, parameters, found)
        if alone is None:
            return None
        pairs = [(p, a, b) for p, a, b in zip(parameters, usual, alone, strict=True) if a is not None and b is not None]
        numbers = to_host([
            number for _, a, b in pairs for number in ((in_float64(a) - in_float64(b)).norm(), in_float64(b).norm())
        ])  # fmt: skip
        gaps, sizes, total = numbers[::2], numbers[1::2], math.hypot(*numbers[1::2])
        far = [
            (p, gap / size) for (p, _, _), gap, size in zip(pairs, gaps, sizes, strict=True)
            if gap > (tolerance := tolerance_of(name_of(p.dtype))) * size and gap > OF_ALL * tolerance * total and size
        ]  # fmt: skip
        return max(far, key=lambda each: each[1], default=None)

    def _gradients(
        self, update: Update, parameters: Sequence[Tensor], found: Sequence[_Hung]
    ) -> Sequence[Tensor | None] | None:
        """Of the last micro-batch, without what the later ones of these hooks do; None where it cannot be done."""
        try:
            with torch.enable_grad():
                replayed = self.context.replayer.run(
                    update.microbatches[-1], parameters, around=_in_vain(found), must_leave_no_trace=True
                )
            return [None if gradient is None else local(gradient) for gradient in replayed.grads]
        except (ReplayImpossible, torch.OutOfMemoryError):
            return None
        except Exception:  # the program's own code runs here, in another way than it is used to
            self._n_proofs = MOST_PROOFS
            return None


def _alike(site: str, kind: str, hooks: Hooks) -> Iterator[_Hung]:
    """Yield those of one function that hang here more than once."""
    groups: list[list[int]] = []
    for key, hook in list(hooks.items()):
        group = next((each for each in groups if are_one(hooks[each[0]], hook)), None)
        if group is None:
            groups.append([key])
        else:
            group.append(key)
    yield from (_Hung(site=site, kind=kind, hooks=hooks, keys=keys) for keys in groups if len(keys) > 1)


def are_one(one: Any, other: Any, deep: int = DEEP) -> bool:
    """Return whether two callables do the same, as far as is known: the same code with the same values in it."""
    if one is other:
        return True
    if type(one) is not type(other) or not deep:
        return False
    if isinstance(one, _PLAIN):
        return bool(one == other)
    if isinstance(one, MethodType):
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    if isinstance(one, functools.partial):
        return all(are_one(a, b, deep - 1) for a, b in zip(_parts(one), _parts(other), strict=True))
    if isinstance(one, FunctionType):
        is_same = one.__code__ is other.__code__ and one.__globals__ is other.__globals__
        return is_same and are_one(_values(one), _values(other), deep - 1)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(are_one(a, b, deep) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_one(value, other[key], deep) for key, value in one.items())
    return False


def _parts(function: functools.partial[Any]) -> tuple[Any, ...]:
    return function.func, function.args, function.keywords


def _values(function: FunctionType) -> tuple[Any, ...]:
    """What a function has beside its code. A cell that is empty is a value of its own."""
    cells = tuple(_content(each) for each in function.__closure__ or ())
    return function.__defaults__, function.__kwdefaults__, cells


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return cell


@contextlib.contextmanager
def _in_vain(found: Sequence[_Hung]) -> Generator[None, None, None]:
    """Call all of these but the first on copies here, and throw away what they return."""
    own = [(each.hooks, key, each.hooks[key]) for each in found for key in each.keys[1:]]

    def without_effect(hook: Callable[..., Any]) -> Callable[..., None]:
        def called(*args: Any, **kwargs: Any) -> None:
            given = replace_tensors((args, kwargs), lambda tensor: tensor.detach().clone())
            hook(*given[0], **given[1])

        return called

    try:
        for hooks, key, hook in own:
            hooks[key] = without_effect(hook)
        yield
    finally:
        for hooks, key, hook in own:
            hooks[key] = hook
