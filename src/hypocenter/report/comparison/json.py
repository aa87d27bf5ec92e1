"""`hypocenter.comparison/1`: the answer as JSON. Its schema is published beside this file."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypocenter import json_answer
from hypocenter.compare.comparison import Comparison, Divergence, RowComparison, SiteCard, Spot
from hypocenter.report.comparison.ranking import ranked

suffix = ".json"
SCHEMA_FILE = Path(__file__).with_name("comparison.schema.json")


def render(found: Comparison) -> str:
    """Indented JSON with a final newline; nothing is cut, a number that is not finite is a string."""
    return json_answer.to_json(envelope(found))


def published() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) that every answer validates against."""
    return json_answer.published(SCHEMA_FILE)


def envelope(found: Comparison) -> dict[str, Any]:
    """The answer as plain values."""
    matching = found.matching
    return {
        "schema": found.schema,
        "status": found.status,
        "sentence": found.sentence,
        "baseline": found.baseline,
        "candidate": found.candidate,
        "first": _first(found.first) if found.first is not None else None,
        "cause": found.cause,
        "confidence": found.confidence,
        "fit": asdict(found.fit) if found.fit is not None else None,
        "why": list(found.why),
        "matched": len(matching.pairs),
        "unmatched": {"baseline": len(matching.unmatched_baseline), "candidate": len(matching.unmatched_candidate)},
        "matched_by": dict(Counter(pair.by for pair in matching.pairs)),
        "unmatched_sites": {
            "baseline": [_card(card) for card in matching.unmatched_baseline],
            "candidate": [_card(card) for card in matching.unmatched_candidate],
        },
        "depth": found.depth,
        "floor_source": found.floor_source,
        "budget": found.budget,
        "steps": found.n_steps,
        "rows": found.n_rows,
        "differing": found.n_differ,
        "sites": [_row(row) for row in ranked(found)],
        "amplifications": [asdict(one) for one in found.amplifications],
        "notes": list(found.notes),
    }


def _first(first: Divergence) -> dict[str, Any]:
    source = first.source
    return {
        "step": first.step,
        "microbatch": first.microbatch,
        "phase": first.phase,
        "site": first.site,
        "port": first.port,
        "error": first.error,
        "floor": first.floor,
        "candidate_site": first.candidate_site,
        "between": list(first.between) if first.between is not None else None,
        "inputs_agree": first.inputs_agree,
        "source": asdict(source) if source is not None else None,
        "row": _row(first.row) if first.row is not None else None,
    }


def _row(row: RowComparison) -> dict[str, Any]:
    distance = row.distance
    return {
        "baseline": [_spot(spot) for spot in row.pair.baseline],
        "candidate": [_spot(spot) for spot in row.pair.candidate],
        "by": row.pair.by,
        "certainty": row.pair.certainty,
        "why": row.pair.why,
        "layout": row.pair.layout.kind,
        "step": row.step,
        "microbatch": row.microbatch,
        "order": row.order,
        "verdict": row.verdict,
        "depth": distance.depth if distance is not None else None,
        "error": distance.relative if distance is not None else None,
        "error_low": distance.low if distance is not None else None,
        "error_high": distance.high if distance is not None else None,
        "cosine": distance.cosine if distance is not None else None,
        "scale": distance.scale if distance is not None else None,
        "details": dict(distance.details) if distance is not None else {},
        "floor": row.floor.relative,
        "floor_source": row.floor.source,
        "floor_samples": row.floor.n_samples,
        "dtypes": list(row.dtypes),
        "shapes": [list(shape) for shape in row.shapes],
    }


def _card(card: SiteCard) -> dict[str, Any]:
    return {**_spot(card.spot), "module": card.module, "dtype": card.dtype, "shape": list(card.shape)}


def _spot(spot: Spot) -> dict[str, Any]:
    return {"phase": spot.phase, "site": spot.site, "port": spot.port, "call": spot.call}
