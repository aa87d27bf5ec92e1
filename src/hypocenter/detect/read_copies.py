"""Networks that every rank's loss is made of and that nobody trains (teachers): where some ranks move theirs alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypocenter.detect.panel import Panel
from hypocenter.detect.replica_rows import READ
from hypocenter.detect.replica_track import track

TIMES = 3  # values that a moving one must have had, beside the first


@dataclass(slots=True)
class _Copies:
    """One parameter on the ranks of a group."""

    first: int  # digest that all began with
    moved: dict[int, set[int]] = field(default_factory=dict[int, set[int]])  # rank -> digests that it had later
    since: int | None = None  # the first step at which somebody had another


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What stands still on some ranks and moves on others."""

    names: tuple[str, ...]
    step: int
    still: tuple[int, ...]
    moving: tuple[int, ...]


def note(panel: Panel) -> None:
    """Take in what was read at this step."""
    known = panel.history.notes["read copies"]
    table = panel.where(port=READ)
    columns = (table[name].to_pylist() for name in ("site", "rank", "digest"))
    values: dict[str, dict[int, int]] = {}
    for site, rank, digest in zip(*columns, strict=True):
        values.setdefault(site, {})[rank] = digest
    for site, by_rank in values.items():
        for group in panel.groups("dp") or [panel.ranks]:
            here = {rank: by_rank[rank] for rank in group if rank in by_rank}
            key = site, group
            if len(here) < len(group) or len(group) < 2:
                known[key] = None  # some do not read it: it is not the same to all
            elif key not in known:
                known[key] = _Copies(first=here[group[0]]) if len(set(here.values())) == 1 else None
            elif (copies := known[key]) is not None:
                for rank, digest in here.items():
                    if digest != copies.first:
                        copies.moved.setdefault(rank, set()).add(digest)
                        copies.since = panel.step if copies.since is None else copies.since


def standing(panel: Panel) -> Iterator[Standing]:
    """Return, for each group of ranks whose trained copies are equal, what stands still on some of them alone."""
    copies_of = track(panel).of("dp", "param")
    if not any(o.n for o in copies_of) or any(o.n_differ for o in copies_of):
        return
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[str, int]]] = {}
    for (site, group), copies in panel.history.notes["read copies"].items():
        if copies is None or copies.since is None or max(map(len, copies.moved.values())) < TIMES:
            continue
        still = tuple(rank for rank in group if rank not in copies.moved)
        if still:
            found.setdefault((group, still), []).append((site, copies.since))
    for (group, still), those in found.items():
        yield Standing(
            names=tuple(site for site, _ in those), step=min(step for _, step in those), still=still,
            moving=tuple(rank for rank in group if rank not in still),
        )  # fmt: skip
