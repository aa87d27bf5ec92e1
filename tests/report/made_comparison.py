"""Comparisons made by hand: a network of blocks, with fused and lone modules, that parts at one row."""

from __future__ import annotations

from dataclasses import replace

from hypocenter.compare.comparison import (
    Comparison,
    Distance,
    Divergence,
    Fit,
    Floor,
    Layout,
    Matching,
    Pair,
    RowComparison,
    SiteCard,
    Spot,
)
from hypocenter.compare.judged_steps import FirstStep
from hypocenter.nouns import Source
from hypocenter.report.comparison.page.payload import Material

FLOOR = 2.0**-20
HOSTILE = "</script><img src=x onerror=pwned=1>\u202e`${1}`"


def spot(site: str, port: str = "out[0]", phase: str = "forward") -> Spot:
    return Spot(phase=phase, site=site, port=port)  # type: ignore[arg-type]


def pair(
    left: Spot | tuple[Spot, ...], right: Spot | tuple[Spot, ...], by: str = "exact", kind: str = "identity"
) -> Pair:
    mine, other = (one if isinstance(one, tuple) else (one,) for one in (left, right))
    return Pair(baseline=mine, candidate=other, by=by, layout=Layout(kind=kind), why=f"{by} rule")  # type: ignore[arg-type]


def row(one: Pair, order: int, error: float | None, step: int = 0) -> RowComparison:
    verdict = (
        "cannot-tell"
        if error is None
        else "equal"
        if error == 0
        else "differs"
        if error > 4 * FLOOR
        else "within-noise"
    )
    distance = None if error is None else Distance(depth="sketch", relative=error, low=error / 2, high=error * 2)
    return RowComparison(
        pair=one, step=step, microbatch=0, order=order, distance=distance, verdict=verdict,  # type: ignore[arg-type]
        floor=Floor(relative=FLOOR, source="repeats", n_samples=3), dtypes=("float32", "float32"),
        shapes=((2, 3), (2, 3)),
    )  # fmt: skip


def block(n: int, new: str) -> list[Pair]:
    """Norm, attention with projections that the candidate fuses, and an output."""
    old = f"layers.{n}"
    parts = tuple(spot(f"{old}.attn.{name}") for name in "qkv")
    return [
        pair(spot(f"{old}.norm"), spot(f"{new}.{n}.norm"), "renamed"),
        pair(parts, spot(f"{new}.{n}.attention.qkv"), "renamed", "concatenated"),
        pair(spot(f"{old}.attn"), spot(f"{new}.{n}.attention"), "renamed"),
        pair(spot(old), spot(f"{new}.{n}"), "structure"),
        pair(spot(f"{old}.norm.weight", "grad", "grad"), spot(f"{new}.{n}.norm.weight", "grad", "grad"), "renamed"),
    ]


def diverged(n_blocks: int = 4, at: int = 2, new: str = "decoder.layers") -> tuple[Comparison, Material]:
    """Equal up to the norm of one block, different from there on; one lone module on each side."""
    pairs = [pair(spot("", "in[0]"), spot("", "in[0]")), *(one for n in range(n_blocks) for one in block(n, new))]
    first = next(n for n, one in enumerate(pairs) if one.baseline[0].site == f"layers.{at}.norm")
    scene = [
        row(one, n, 0.0 if n < first and one.baseline[0].phase == "forward" else 2.0**-5) for n, one in enumerate(pairs)
    ]
    lone = (
        SiteCard(spot=spot("layers.0.act"), order=5),
        SiteCard(spot=spot(f"{new}.1.attention.core"), order=9),
    )  # fmt: skip
    fit = Fit(
        name="eps", cause="config-mismatch", explained=1.0, confidence="proven", text="eps", fix="set the same eps"
    )  # fmt: skip
    found = Comparison(
        baseline="runs/good", candidate="runs/new", status="diverged", cause="config-mismatch", confidence="proven",
        sentence=f"diverged at step 0, forward: layers.{at}.norm out[0] differs by 2^-5", depth="sketch", n_steps=3,
        why=("its inputs agree",), fit=fit,
        rows=tuple(replace(one, step=2) if one.verdict == "differs" else one for one in scene),
        matching=Matching(pairs=tuple(pairs), unmatched_baseline=lone[:1], unmatched_candidate=lone[1:]),
        first=Divergence(
            step=0, microbatch=0, phase="forward", site=f"layers.{at}.norm", port="out[0]", error=2.0**-5, floor=FLOOR,
            candidate_site=f"{new}.{at}.norm", source=Source(file="model.py", line=61, function="forward"),
            row=scene[first],
        ),
        n_rows=3 * len(pairs), n_differ=9, floor_source="repeats", budget=4.0,
    )  # fmt: skip
    return found, Material(scene=FirstStep(step=0, rows=tuple(scene)), command="hypocenter diff runs/good runs/new")


def same() -> tuple[Comparison, Material]:
    """Everything equal."""
    found, _ = diverged()
    rows = tuple(row(one.pair, n, 0.0) for n, one in enumerate(found.rows))
    calm = replace(found, status="same", sentence="same: 21 sites", first=None, fit=None, cause=None, rows=rows)
    return replace(calm, matching=replace(calm.matching, unmatched_baseline=(), unmatched_candidate=())), Material()


def hostile() -> tuple[Comparison, Material]:
    """Every name is an attack."""
    one = pair(spot(HOSTILE, HOSTILE), spot(HOSTILE + "2", HOSTILE), HOSTILE)
    bad = row(one, 0, 0.5)
    first = Divergence(
        step=0, microbatch=0, phase="forward", site=HOSTILE, port=HOSTILE, error=0.5, floor=FLOOR,
        candidate_site=HOSTILE,
        source=Source(file=HOSTILE, line=1, text=HOSTILE, function=HOSTILE), row=bad,
    )  # fmt: skip
    lone = SiteCard(spot=spot("y" * 10_000), order=3)
    found = Comparison(
        baseline=HOSTILE, candidate=HOSTILE, status="diverged", sentence=HOSTILE, first=first, why=(HOSTILE,),
        rows=(bad,),
        notes=(HOSTILE,), matching=Matching(pairs=(one,), unmatched_candidate=(lone,)), n_rows=1,
    )  # fmt: skip
    return found, Material(scene=FirstStep(step=0, rows=(bad,)), command=HOSTILE)
