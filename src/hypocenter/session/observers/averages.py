"""Averages of the weights (EMA, SWA, a target network): what low formats freeze, and what is no average."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from hypocenter.detect.law_rows import OWN_AVERAGE, OWN_COPY
from hypocenter.detect.update_rows import EMA_LOST, SITE
from hypocenter.nouns import replace
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.grid import is_low, name_of, ulp, wide_dtype
from hypocenter.session.observers.mixtures import Mixtures
from hypocenter.session.observers.optimizer_rows import count_row, number_row
from hypocenter.session.observers.sampled import Deferred, sample
from hypocenter.session.observers.shadows import shadows
from hypocenter.tap.names import NameMap, class_name, unwrap
from hypocenter.tap.own_frame import RAISED, hear
from hypocenter.tap.tape import storage_of, version_of
from hypocenter.tap.weakly import Ref

PAIRS = 8  # parameters of a copy that are followed, evenly spread; always the same, for what counts is the long run
ELEMENTS = 512  # of each
SLOWEST = 1e-4  # 1 - decay of the slowest average in use; a faster one would have moved earlier
REPORT_EVERY = 16  # updates of the copy between two rows
FOLLOW_EVERY = 8  # updates of the copy between two looks at its values; what an average owes is taken as constant
UNTOUCHED = 256  # looks after which a copy that nothing has written is left alone: a teacher, a reference
KEPT_AT_MOST = 100_000  # modules that are remembered until the trained model is known
LOOKED_FOR = 4  # updates after which lists and dicts of clones are looked for, in all objects of the process
AGAIN = 16  # updates after which once more, if the program has read its parameters since
OWN_TWICE = 2  # updates before which a weight was averaged with itself
TRIES = 8  # updates at which a copy is compared with what is trained: GANs have several optimizers


@dataclass(slots=True, kw_only=True)
class _Followed:
    """One pair: where the copy stood, and how far an exact average would have moved since, in ulps of the copy."""

    source: weakref.ref[Tensor]
    copy: weakref.ref[Tensor]
    name: str
    anchor: Tensor
    owed_ulps: Tensor  # signed sum of (source - copy) / ulp * SLOWEST
    version: int
    moved: Tensor  # elements that have changed since
    seen: Tensor | None = None  # the source at the last look


@dataclass(slots=True, kw_only=True)
class _Watched:
    kind: str
    followed: list[_Followed] = field(default_factory=list)
    first_step: int | None = None  # of the first update of the copy
    n_updates: int = 0
    n_written: int = 0  # of these, updates that left a new version: those through `.data` do not
    n_moved: int = 0  # elements that had moved at the last report


class Averages(Observer):
    """Follows samples of every copy of the trained model; without one it does nothing."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._copies = Copies(context.names)
        self._watched: list[_Watched] = []
        self._deferred = Deferred(context.ride)
        self._mixtures = Mixtures(context, lambda row: self.rows.append(row))
        self._last_step = self._n_updates = self._n_own = self._own_since = 0
        self._is_put_back = False  # a weight was, by itself; it was told

    def attach(self) -> Callable[[], None]:
        """Notice copies as they are made."""
        return self._copies.attach()

    def at_rest(self) -> Iterable[str]:
        """Without copies there is nothing on its way."""
        heard = self.context.self_averages
        is_done = (self._n_own >= OWN_TWICE or not heard.storages) and (self._is_put_back or not heard.put_back)
        return ("before_update",) if is_done and self._mixtures.is_empty and not self._deferred.waiting else ()

    def before_update(self, update: Update) -> None:
        """Collect what is under way."""
        if self._deferred.waiting:
            self._deferred.read()
        if not self._mixtures.is_empty:
            self._mixtures.before_update(update)
        heard = self.context.self_averages
        if self._n_own < OWN_TWICE and heard.storages:
            self._tell_of_itself(update, [p for p in update.parameters if storage_of(p) in heard.storages])
        if heard.put_back and not self._is_put_back:
            lost = [p for p in update.parameters if storage_of(p) in heard.put_back]
            self._is_put_back = bool(lost)
            self.rows += [
                number_row(self.context.label(p), OWN_COPY, update.step, self.context.clock.next_order(), len(lost))
                for p in lost[:1]
            ]

    def _tell_of_itself(self, update: Update, own: Sequence[Tensor]) -> None:
        """Write a row at the second update before which weights were averaged with themselves."""
        self._n_own += bool(own)
        self._own_since = self._last_step if own and self._n_own == 1 else self._own_since
        if own and self._n_own == OWN_TWICE:
            name, order = self.context.label(own[0]), self.context.clock.next_order()
            row = number_row(name, OWN_AVERAGE, self._last_step, order, float(OWN_TWICE), call=len(own))
            self.rows.append(replace(row, op=str(self._last_step - self._own_since)))

    def after_update(self, update: Update) -> None:
        """Look at the copies: what the program did to them since the last update belongs to the last step."""
        if self._watched:
            with torch.no_grad():
                for watched in self._watched:
                    self._look(watched, self._last_step)
            self._watched = [w for w in self._watched if w.followed and not _is_idle(w)]
        for copy in self._copies.new(update.parameters):
            low = [pair for pair in copy.pairs.values() if is_low(pair.copy)]
            if low:
                self._watched.append(self._start(copy.kind, low))
            copies = {name: (pair.source, Ref(pair.copy)) for name, pair in copy.pairs.items()}
            self._mixtures.start(copy.kind, copies)
        self._n_updates += 1
        if self._n_updates == LOOKED_FOR or (self._n_updates == AGAIN and self.context.reads_parameters()):
            for kind, pairs in shadows(self.context, update.parameters):
                self._mixtures.start(kind, pairs)
        if not self._mixtures.is_empty:
            self._mixtures.after_update(update)
        self._last_step = update.step

    def _start(self, kind: str, pairs: Sequence[Pair]) -> _Watched:
        watched = _Watched(kind=kind)
        large = sorted(pairs, key=lambda pair: -pair.copy.numel())
        for pair in _spread(large):
            values = sample(pair.copy, ELEMENTS)
            if values is None:
                continue
            wide = wide_dtype(values.device)
            watched.followed.append(
                _Followed(
                    source=Ref(pair.source), copy=Ref(pair.copy),
                    name=self.context.label(pair.source), anchor=values.clone(),
                    owed_ulps=torch.zeros(values.shape, dtype=wide, device=values.device),
                    version=version_of(pair.copy), moved=torch.zeros_like(values, dtype=torch.bool),
                    seen=None if (towards := sample(pair.source, ELEMENTS)) is None else towards.to(wide).clone(),
                )
            )  # fmt: skip
        return watched

    def _look(self, watched: _Watched, step: int) -> None:
        pairs = [(f, s, c) for f in watched.followed if (s := f.source()) is not None and (c := f.copy()) is not None]
        watched.followed = [f for f, _, _ in pairs]
        is_written = any(version_of(copy) != f.version for f, _, copy in pairs)
        if watched.n_written and not is_written:
            return  # it is updated now and then: only these updates count
        if is_written and not watched.n_written:
            watched.first_step = None
            watched.n_updates = 0
        watched.first_step = step if watched.first_step is None else watched.first_step
        watched.n_written += is_written
        watched.n_updates += 1
        for followed, _, copy in pairs:
            followed.version = version_of(copy)
        is_first = watched.n_updates == 1  # that may set it to its source
        if is_first or watched.n_updates % FOLLOW_EVERY == 0:
            for followed, source, copy in pairs:
                _follow(followed, source, copy, 1 if is_first else FOLLOW_EVERY)
        if watched.n_updates % REPORT_EVERY == 0:
            self._report(watched, step)

    def _report(self, watched: _Watched, step: int) -> None:
        numbers = [_counts(f) for f in watched.followed]
        is_written = watched.n_written > 0
        dtype = name_of(watched.followed[0].anchor.dtype)
        names = [f.name for f in watched.followed]
        sizes = [f.anchor.numel() for f in watched.followed]

        def read(host: Sequence[float]) -> None:
            order, first = self.context.clock.next_order, watched.first_step or 0
            counts = [(round(host[i]), round(host[i + 1])) for i in range(0, len(host), 3)]
            watched.n_moved = round(sum(host[2::3]))
            if not (is_written or watched.n_moved):
                return  # nothing has ever written to it
            for name, pair in zip(names, counts, strict=True):
                if pair[0]:
                    self.rows.append(
                        count_row(name, EMA_LOST, step, order(), pair, dtype=dtype, module=watched.kind, call=first)
                    )  # fmt: skip
            n, lost = sum(n for n, _ in counts), sum(lost for _, lost in counts)
            if n:
                self.rows.append(
                    count_row(SITE, EMA_LOST, step, order(), (n, lost), dtype=dtype, shape=(sum(sizes),),
                              module=watched.kind, call=first)
                )  # fmt: skip

        self._deferred.add(torch.cat(numbers), read)


def _follow(followed: _Followed, source: Tensor, copy: Tensor, n_updates: int) -> None:
    """Add what so many updates of the copy should have been worth."""
    now, towards = sample(copy, ELEMENTS), sample(source, ELEMENTS)
    if now is None or towards is None or now.shape != followed.anchor.shape or now.dtype != followed.anchor.dtype:
        return
    values, towards = now.to(followed.owed_ulps.dtype), towards.to(followed.owed_ulps.dtype)
    owed = followed.owed_ulps + (towards - values) / ulp(values, now.dtype) * (n_updates * SLOWEST)
    moved = followed.moved | (now != followed.anchor)
    if followed.seen is not None:
        is_set = (now == followed.seen.to(now.dtype)).all()  # to its source, as the first update of an AveragedModel is
        followed.anchor = torch.where(is_set, now, followed.anchor)
        owed, moved = torch.where(is_set, 0.0, owed), moved & ~is_set
    followed.owed_ulps, followed.moved, followed.seen = owed, moved, towards.clone()


def _counts(followed: _Followed) -> Tensor:
    """Elements that are owed an ulp or more, of these those that never moved, and all that moved."""
    is_owed = followed.owed_ulps.abs() >= 1.0
    counts = torch.stack([is_owed, is_owed & ~followed.moved, followed.moved]).sum(dim=1)
    return counts.to(followed.owed_ulps.dtype)


def _is_idle(watched: _Watched) -> bool:
    return watched.n_updates >= UNTOUCHED and not (watched.n_written or watched.n_moved)


def _spread(pairs: Sequence[Pair]) -> list[Pair]:
    """The two smallest (biases start at 0, where every update arrives) and the others evenly spread, largest first."""
    if len(pairs) <= PAIRS:
        return list(pairs)
    stride = (len(pairs) - 2) // (PAIRS - 2)
    return [*pairs[: stride * (PAIRS - 2) : stride], *pairs[-2:]]


# Seen are modules made by `copy.deepcopy` (or unpickled) while we watch, which is how EMA copies are made, among them
# the one inside `torch.optim.swa_utils.AveragedModel`; an AveragedModel made before, once it updates; and any other
# watched outermost module. Not seen: lists of cloned tensors, and copies made before we watched that are never called.
@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A trained parameter and its copy."""

    source: Tensor
    copy: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy of the trained model."""

    kind: str  # its class, as the user calls it
    pairs: Mapping[str, Pair]  # by name


class Copies:
    """Notices modules as they are copied, and finds those that match a trained model."""

    def __init__(self, names: NameMap) -> None:
        self._names = names
        self._made: list[_Made] = []
        self._given: set[int] = set()  # ids of modules that were noticed, while they live
        self._n_roots = self._generation = -1

    def attach(self) -> Callable[[], None]:
        """Start noticing; returns the undo."""
        undos = [self._on_call(nn.Module, "__setstate__"), self._on_call(AveragedModel, "update_parameters")]

        def undo() -> None:
            for each in undos:
                each()

        return undo

    def _on_call(self, owner: type, name: str) -> Callable[[], None]:
        def begin(module: Any, *_: Any) -> Callable[[Any], None]:
            return lambda result: None if result is RAISED else self._note(_inner(module, name))

        return hear(owner, name, begin)

    def _note(self, module: Any) -> None:
        if id(module) in self._given or len(self._made) >= KEPT_AT_MOST or not isinstance(module, nn.Module):
            return
        self._made.append(_Made(Ref(module)))
        self._given.add(id(module))
        weakref.finalize(module, self._given.discard, id(module)).atexit = False

    def new(self, trained: Sequence[Tensor]) -> list[Copy]:
        """Copies that were not there at the last call.

        Args:
            trained: parameters that an optimizer updates.
        """
        if self._generation == self._names.generation and not self._made:
            return []
        watched = self._names.roots()
        if len(watched) != self._n_roots:
            self._n_roots = len(watched)
            for root in watched:
                self._note(unwrap(root))
        self._generation = self._names.generation
        if not self._made:
            return []
        roots = [unwrap(root) for root in watched]
        ids = {id(p) for p in trained}
        live = [(m, module) for m in self._made if (module := m.module()) is not None]
        inner = {id(child) for _, module in live for child in _below(module)}
        found: list[Copy] = []
        self._made = []
        for made, module in live:
            if id(module) in inner:
                continue
            copy = _copy_in(roots, unwrap(module), ids)
            if copy is not None:
                found.append(copy)
            elif made.tries < TRIES:
                self._made.append(_Made(made.module, made.tries + 1))
        return [copy for copy in found if copy.pairs]


def _inner(module: Any, name: str) -> Any:
    return module.module if isinstance(module, AveragedModel) and name != "__setstate__" else module


@dataclass(frozen=True, slots=True)
class _Made:
    module: weakref.ref[nn.Module]
    tries: int = 0


def _below(module: nn.Module) -> list[nn.Module]:
    return [child for child in module.modules() if child is not module]


def _copy_in(roots: Sequence[nn.Module], module: nn.Module, trained: set[int]) -> Copy | None:
    """The one trained module that this is a copy of; None without one, or when several look alike."""
    theirs = list(module.parameters())
    if not theirs or any(id(p) in trained for p in theirs):
        return None
    kind, shapes = class_name(module), [p.shape for p in theirs]
    alike: dict[int, nn.Module] = {}
    for candidate in (m for root in roots for m in root.modules() if class_name(m) == kind and m is not module):
        ours = list(candidate.parameters())
        if [p.shape for p in ours] == shapes and any(id(p) in trained for p in ours):
            alike[id(candidate)] = candidate
    if len(alike) != 1:
        return None
    (candidate,) = alike.values()
    ours, copied = dict(candidate.named_parameters()), dict(module.named_parameters())
    if ours.keys() != copied.keys():
        copied = dict(zip(ours, copied.values(), strict=True))
    pairs = {name: Pair(source=p, copy=copied[name]) for name, p in ours.items() if id(p) in trained}
    return Copy(kind=kind, pairs={n: each for n, each in pairs.items() if each.source.shape == each.copy.shape})
