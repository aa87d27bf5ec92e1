"""The map file: pairs that a person wrote, or that `diff --write-map` drafted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualPair:
    """One `[[pair]]`: sites of the baseline and of the candidate that are the same; several are parts of a fused one.

    `ports`: baseline port -> candidate port; empty: all ports of the same name. Layout fields as in comparison.Layout;
    an empty `layout` is read off the shapes.
    """

    baseline: tuple[str, ...]
    candidate: tuple[str, ...]
    ports: dict[str, str]
    layout: str = ""
    groups: int = 1
    swapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualMap:
    """A whole map file."""

    pairs: tuple[ManualPair, ...] = ()
    path: str = ""  # where it was read from
