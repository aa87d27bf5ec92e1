"""What a format with scales that follow the data would do to a recorded run: what becomes zero, within bounds."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import pyarrow as pa
from msgspec import Meta
from rich.text import Text

from hypocenter.nouns import Phase
from hypocenter.report import wording
from hypocenter.report.columns import aligned, cut_rows
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.headroom.gather import PHASES, each_tensor, of_values
from hypocenter.report.headroom.sentences import percent
from hypocenter.report.screen import Screen
from hypocenter.summary.casting import n_nonzero
from hypocenter.summary.scaled_formats import ScaledFormat, Zeros, zeros

HISTORY = 1024  # readings whose largest makes the scale: TransformerEngine's delayed scaling
Share = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledSite:
    """One place, over all its readings. Shares are of the elements that are not zero."""

    phase: Phase
    site: str
    port: str
    dtype: str
    element: Annotated[str, Meta(description="Format of an element.")]
    block: Annotated[int, Meta(description="Elements under one scale; 0: the whole tensor.")]
    zero_at_least: Annotated[Share, Meta(description="Become zero, however values lie in their blocks.")]
    zero_expected: Annotated[Share, Meta(description="Become zero if values lie in no order.")]
    zero_at_most: Annotated[Share, Meta(description="At most, however values lie in their blocks.")]
    readings: int
    grown: Annotated[int, Meta(description="Readings with a larger value than all before: delayed scaling saturates.")]
    sampled: Annotated[bool, Meta(description="Histograms are of a sample.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledHeadroom:
    """What a format with scales for blocks or tensors would make of a run. They follow the data: nothing overflows."""

    SPELLS_OUT: ClassVar = False
    schema: Literal["hypocenter.scaled-headroom/1"] = "hypocenter.scaled-headroom/1"
    status: Literal["fits", "cannot-tell"]
    run: str = ""
    format: str = ""
    text: Annotated[str, Meta(description="The answer in one sentence.")] = ""
    sites: Annotated[tuple[ScaledSite, ...], Meta(description="Those that may lose most first.")] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Tensor:
    """What is needed of one reading."""

    zeros: Zeros
    n: int  # nonzero elements that its histogram looked at
    is_sampled: bool
    has_grown: bool


def answer(table: pa.Table, form: ScaledFormat, *, phases: Sequence[str] = PHASES, run: str = "") -> ScaledHeadroom:
    """Answer for the readings of `table`, tensor by tensor.

    Args:
        table: the selected readings.
        form: the target format.
        phases: the ones to look at.
        run: name of the recording.
    """
    chosen = of_values(table)
    names = ("rank", "phase", "site", "port", "op", "dtype")
    keys = zip(*(chosen[name].to_pylist() for name in names), strict=True)
    found: defaultdict[tuple[str, ...], list[_Tensor]] = defaultdict(list)
    largest: defaultdict[tuple[object, ...], deque[float]] = defaultdict(lambda: deque(maxlen=HISTORY))
    for key, summary in zip(keys, each_tensor(chosen), strict=True):
        _, phase, site, port, op, dtype = key
        if phase in phases and (n := n_nonzero(summary)):
            before = largest[key]
            has_grown = bool(before) and summary.absmax > max(before)
            before.append(summary.absmax)
            one = _Tensor(zeros(summary, form, phase), n, is_sampled=summary.n_hist < summary.n, has_grown=has_grown)
            found[phase, site, f"{port} {op}".rstrip(), dtype].append(one)
    sites = sorted((_site(key, parts, form) for key, parts in found.items()), key=lambda s: -s.zero_at_most)
    return ScaledHeadroom(
        status="fits" if sites else "cannot-tell",
        run=run,
        format=form.name,
        text=_sentence(form, sites),
        sites=tuple(sites),
        notes=tuple(_notes(form, sites)),
    )


def _site(key: tuple[str, ...], parts: Sequence[_Tensor], form: ScaledFormat) -> ScaledSite:
    phase, site, port, dtype = key
    n = sum(one.n for one in parts)
    return ScaledSite(
        phase=phase,  # type: ignore[arg-type]
        site=site,
        port=port,
        dtype=dtype,
        element=form.element_of(phase).name,
        block=form.block_of(phase),
        zero_at_least=min(1.0, sum(one.zeros.least for one in parts) / n),
        zero_expected=min(1.0, sum(one.zeros.expected for one in parts) / n),
        zero_at_most=min(1.0, sum(one.zeros.most for one in parts) / n),
        readings=len(parts),
        grown=sum(one.has_grown for one in parts),
        sampled=any(one.is_sampled for one in parts),
    )


def _sentence(form: ScaledFormat, sites: Sequence[ScaledSite]) -> str:
    if not sites:
        return f"in {form.name}: cannot tell, no histograms of floating-point values were recorded here"
    worst = sites[0]
    where = f"{worst.site or '(model)'} {worst.port}"
    if not worst.zero_at_most:
        return f"in {form.name}: nothing of {wording.count(len(sites), 'site')} becomes zero"
    return (
        f"in {form.name}: of {wording.count(len(sites), 'site')} {where} may lose most: {_range(worst)} of its nonzero "
        "values become zero"
    )


def _range(site: ScaledSite) -> str:
    """Return shares as text: `1.2 %`, or `0 % to 12 %, about 3 %`."""
    least, most = percent(site.zero_at_least), percent(site.zero_at_most)
    return least if least == most else f"{least} to {most}, about {percent(site.zero_expected)}"


def _notes(form: ScaledFormat, sites: Sequence[ScaledSite]) -> Iterator[str]:
    if not sites:
        yield "record them with --level modules --histogram full"
        return
    if form.block:
        yield (
            "a histogram does not tell which values share a block: the bounds hold for any arrangement, the estimate "
            "is for values that lie in no order; channels of large values come near the upper bound"
        )
    else:
        grown = sorted((site for site in sites if site.grown), key=lambda site: -site.grown)
        yield (
            "the scale is that of the tensor itself (current scaling); one from the largest of the readings before "
            f"(delayed scaling) would saturate at {wording.count(len(grown), 'site')}"
            + (f", at most of {grown[0].site or '(model)'} {grown[0].port}" if grown else "")
        )
    if any(site.sampled for site in sites):
        yield (
            "histograms are of 512 elements a tensor: shares are estimates and bounds hold for the sample only; "
            "record with --histogram full to count all"
        )


def render(found: ScaledHeadroom, screen: Screen, *, rows: int) -> str:
    """Return the screen: the sentence, and the sites of each phase that may lose most."""
    return to_text(_lines(found, screen.width, rows), screen)


def _lines(found: ScaledHeadroom, width: int, rows: int) -> Iterator[Text]:
    style = {"fits": "bold green", "cannot-tell": "bold yellow"}[found.status]
    yield from wrapped(Text(""), Text(wording.clean(found.text), style), width, indent=2)
    for phase in PHASES:
        sites = [site for site in found.sites if site.phase == phase]
        if not sites:
            continue
        yield Text()
        block = f"blocks of {sites[0].block:,}" if sites[0].block else "one scale a tensor"
        yield Text(f"{phase}: {wording.count(len(sites), 'site')}, {sites[0].element}, {block}", "bold")
        shown = sites[: rows or None]
        table = [("  zero at least", "about", "at most", "site")]
        table += [
            (
                percent(s.zero_at_least),
                percent(s.zero_expected),
                percent(s.zero_at_most),
                wording.clean(f"{s.site or '(model)'} {s.port}"),
            )
            for s in shown
        ]
        yield from map(Text, aligned(table, right=frozenset({0, 1, 2})))
        for cut in cut_rows(len(shown), len(sites), "site", "see them with --rows 0 or --json"):
            yield Text(f"  {cut}")
    if found.notes:
        yield Text()
    for note in found.notes:
        yield from wrapped(Text("note: ", "cyan"), Text(note, "cyan"), width, indent=2)
