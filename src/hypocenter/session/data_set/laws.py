"""The laws of a data set, asked by reading some of its samples again. It changes what it asks: only in a child.

Read only   an item that is read again, with the same draws, is the same, whatever was read in between
One by one  an item stays what it is when the next one is read
Together    a collate function moves all fields of a sample together

Each of them says "broken" only where the same reading, done again, gave the same; else nobody can tell.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypocenter.session.data_set.asked import ONE_BY_ONE, READ_ONLY, Asked, Broken
from hypocenter.session.data_set.draws import OTHERS, A, set_draws
from hypocenter.session.data_set.leaves import bits, digest, extent, leaves, overlaps
from hypocenter.session.data_set.own_rows import Row, own_rows
from hypocenter.session.data_set.together import together

_SAMPLES = 3  # that are read again
_LEAST = 2  # at which a law is broken
_OFTEN = 4  # readings with other draws: some augmentations are left out by chance


def broken_laws(asked: Asked, seconds: float) -> list[Broken]:
    """Return which laws are broken; what is not known after so many seconds is not."""
    end = time.monotonic() + seconds
    found: list[Broken] = []
    for law in (one_by_one, together_of, read_only):
        with contextlib.suppress(Exception):  # it cannot be read so: nobody can tell
            broken = law(asked, lambda: time.monotonic() < end)
            if broken is not None:
                found.append(broken)
    return found


def read(dataset: Any, indices: Sequence[Any]) -> list[Any]:
    """Read items as the loader does."""
    many = getattr(dataset, "__getitems__", None)
    return list(many(list(indices))) if many else [dataset[index] for index in indices]


def _again(dataset: Any, indices: Sequence[Any], seed: int = A) -> list[Any]:
    set_draws(seed)
    return read(dataset, indices)


def one_by_one(asked: Asked, has_time: Callable[[], bool]) -> Broken | None:
    """An item stays what it is when the next one is read."""
    if not asked.is_batched:  # each is used up before the next one is read
        return None
    seen: list[str] = []
    field = ""
    pairs = list(zip(asked.indices, asked.indices[1:], strict=False))[:_SAMPLES]
    for index, following in pairs:
        if not has_time():
            return None
        alone = _held(_again(asked.dataset, [index])[0])
        if _held(_again(asked.dataset, [index])[0]) != alone:
            return None
        both = _again(asked.dataset, [index, following])
        shared = next(_overwritten(both[0], both[1], alone), None)
        if shared is not None and _held(_again(asked.dataset, [index])[0]) == alone:
            seen.append(str(index))
            field = field or shared
    if len(seen) < min(_LEAST, len(pairs)) or not seen:
        return None
    return Broken(law=ONE_BY_ONE, field=field, indices=tuple(seen), n_asked=len(pairs), is_proven=True)


def _held(item: Any) -> dict[str, bytes]:
    return {name: bits(leaf) for name, leaf in leaves(item)}


def _overwritten(one: Any, other: Any, alone: dict[str, bytes]) -> Iterator[str]:
    """Yield what of an item lies where the next one does, and is not what it was when it was read alone."""
    if one is other and isinstance(one, (dict, list)) and _held(one) != alone:
        yield "item"
    second = dict(leaves(other))
    for name, leaf in leaves(one):
        if name in second and overlaps(leaf, second[name]) and bits(leaf) != alone.get(name):
            yield f"item{name}"


def together_of(asked: Asked, has_time: Callable[[], bool]) -> Broken | None:
    """A collate function moves all fields of a sample together."""
    return together(asked, _again, has_time) if asked.is_batched else None


def read_only(asked: Asked, has_time: Callable[[], bool]) -> Broken | None:
    """An item that is read again is the same, whatever was read in between."""
    if not asked.is_kept:
        return None
    indices = list(asked.indices[:_SAMPLES])
    if len(indices) == 1 and type(indices[0]) is int and len(asked.dataset) > 1:
        indices.append((indices[0] + 1) % len(asked.dataset))
    seen: list[str] = []
    fields: list[str] = []
    for index in indices:
        if not has_time():
            break
        changed = _changed(asked, index)
        if changed is not None:
            seen.append(str(index))
            fields.append(changed)
    if len(seen) < _LEAST:
        return None
    return Broken(law=READ_ONLY, field=fields[0], indices=tuple(seen), n_asked=len(indices), is_proven=all(fields))


def _changed(asked: Asked, index: Any) -> str | None:
    """Return what of the data set reading this sample changes, "" if that is not known; None if it changes nothing."""

    def held() -> dict[str, Row]:
        with contextlib.suppress(Exception):  # of a kind of its own
            return own_rows(asked.dataset, index)
        return {}

    def once(seed: int) -> Any:
        set_draws(seed)
        return read(asked.dataset, [index])[0] if asked.is_batched else asked.dataset[index]

    before = held()
    item = once(A)
    first, places = digest(item), [place for _, leaf in leaves(item) if (place := extent(leaf)) is not None]
    after_one = held()
    is_repeated = digest(once(A)) == first
    after_two = held()
    if not is_repeated:  # it draws from generators of its own, or is given out where it lies, and written over there
        rows = [(name, each, after_one.get(name), after_two.get(name)) for name, each in before.items()]
        return next((name for name, *three in rows if _is_written_over(three, places)), None)
    for seed in OTHERS[:_OFTEN]:
        once(seed)
    if digest(once(A)) == first:
        return None
    now = held()
    changed = [name for name, row in now.items() if name in after_two and row.held != after_two[name].held]
    # where it holds the sample, and the sample has stayed, it remembers something else: who knows what for
    return changed[0] if changed else (None if now else "")


def _is_written_over(rows: Sequence[Row | None], places: Sequence[tuple[int, int]]) -> bool:
    """Return whether a row was another one after each reading, in the same place, and is itself what was read."""
    known = [row for row in rows if row is not None and row.place is not None]
    if len(known) < len(rows) or len({row.place for row in known}) > 1:
        return False
    begin, end = known[0].place or (0, 0)
    is_changed = all(one.held != other.held for one, other in itertools.pairwise(known))
    return is_changed and any(begin < last and first < end for first, last in places)
