"""Remedies tried in replays, smallest first; each says whether the step was finite with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from hypocenter.diagnose.evidence import Evidence
from hypocenter.nouns import Remedy
from hypocenter.replay.remedies.fp32_island import advice, ancestors, island

Cured = Callable[[contextlib.AbstractContextManager[Any]], bool]
NextSite = Callable[[contextlib.AbstractContextManager[Any]], str | None]
LOW_PRECISION = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
MAX_ISLANDS = 6  # modules in one island set


def propose(
    evidence: Evidence,
    module: Callable[[str], torch.nn.Module | None],
    cured: Cured,
    cured_at: Callable[[str, int], bool],
    next_site: NextSite,
) -> tuple[Remedy, ...]:
    """Remedies for what the evidence shows, verified ones first.

    Args:
        evidence: with origin and adjudication filled in.
        module: module path -> module.
        cured: whether a replay inside the given context manager shows the failure no more.
        cured_at: whether a replay with one line of loss code in float32 (file, line) shows it no more.
        next_site: where the failure starts when replayed inside the given context manager; None if it does not.
    """
    found: list[Remedy] = []
    origin = evidence.origin
    low = origin is not None and any(t.dtype in LOW_PRECISION for t in (*origin.outputs, *origin.inputs))
    if origin is not None and low and evidence.float64.finite and evidence.leaf is None:
        if origin.site == "loss" and origin.source is not None:
            found.append(_line_in_float32(origin.source.file, origin.source.line, cured_at))
        else:
            found.append(_smallest_island(origin.site, module, cured, next_site))
    if evidence.samples and evidence.samples_confirmed:
        rows = ", ".join(str(row) for row in evidence.samples[:8])
        found.append(
            Remedy(
                action="drop-samples",
                targets=tuple(str(row) for row in evidence.samples),
                verified=True,
                text=f"leave out batch row{'s' if len(evidence.samples) > 1 else ''} {rows}",
            )
        )
    return tuple(sorted(found, key=lambda remedy: not remedy.verified))


def _line_in_float32(file: str, line: int, cured_at: Callable[[str, int], bool]) -> Remedy:
    return Remedy(
        action="fp32-island",
        targets=(f"{file}:{line}",),
        verified=cured_at(file, line),
        text=f"compute line {line} in float32: cast its operands with .float()",
    )


def _smallest_island(
    site: str, module: Callable[[str], torch.nn.Module | None], cured: Cured, next_site: NextSite
) -> Remedy:
    targets = [site]
    while len(targets) <= MAX_ISLANDS:
        modules = [m for path in targets if (m := module(path)) is not None]
        if len(modules) < len(targets):
            break
        for cast_back in (True, False):
            if cured(island(modules, cast_back=cast_back)):
                return _verified(targets, cast_back)
        following = next_site(island(modules, cast_back=False))
        if following is None or following in targets or following == "loss":
            break
        targets.append(following)
    for path in ancestors(site)[1:]:
        target = module(path)
        for cast_back in (True, False):
            if target is not None and cured(island([target], cast_back=cast_back)):
                return _verified([path], cast_back)
    return Remedy(action="fp32-island", targets=(site,), verified=False, text=advice(site, cast_back=False))


def _verified(targets: list[str], cast_back: bool) -> Remedy:
    where = ", ".join(target or "the model" for target in targets)
    return Remedy(action="fp32-island", targets=tuple(targets), verified=True, text=advice(where, cast_back=cast_back))
