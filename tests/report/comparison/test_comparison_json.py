"""`hypocenter.comparison/1` is a contract: what DESIGN names is there, and every answer fits the published schema."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest

from hypocenter.compare.comparison import (
    Comparison,
    Distance,
    Divergence,
    Fit,
    Floor,
    Matching,
    Pair,
    RowComparison,
    SiteCard,
    Spot,
)
from hypocenter.json_answer import plain, published
from hypocenter.nouns import CAUSES, Source
from hypocenter.report.comparison import catalogue, terminal
from hypocenter.report.comparison.json import Diff, render, written

SPOT = Spot(phase="forward", site="layers.3.mlp", port="out[0]")
OTHER = Spot(phase="forward", site="decoder.layers.3.mlp", port="out[0]")
PAIR = Pair(baseline=(SPOT,), candidate=(OTHER,), by="renamed", why="rule")
ROW = RowComparison(
    pair=PAIR, step=41, microbatch=1, order=7, floor=Floor(relative=2.0**-13, source="repeats", n_samples=3),
    distance=Distance(depth="sketch", relative=2.0**-6, low=2.0**-7, high=2.0**-5, cosine=0.9, scale=1.1),
    verdict="differs", dtypes=("float32", "bfloat16"), shapes=((2, 3), (2, 3)),
)  # fmt: skip
CULPRIT = Divergence(
    step=41, microbatch=1, phase="forward", site="layers.3.mlp", port="out[0]", error=2.0**-6, floor=2.0**-13,
    candidate_site="decoder.layers.3.mlp", source=Source(file="model.py", line=3), between=("x out[0]", "y in[0]"),
    inputs_agree=True, row=ROW,
)  # fmt: skip
FOUND = Comparison(
    baseline="a", candidate="b", status="diverged", sentence="diverged at step 41", cause="precision-mismatch",
    fit=Fit(name="eps", cause="config-mismatch", explained=0.99, confidence="likely", text="eps differs"),
    why=("because",), rows=(ROW, replace(ROW, distance=None, verdict="cannot-tell")), floor_source="repeats",
    matching=Matching(pairs=(PAIR,), unmatched_candidate=(SiteCard(spot=OTHER, order=0),)), depth="sketch",
    n_steps=42, n_rows=100, n_differ=3, first=CULPRIT,
)  # fmt: skip


@pytest.mark.parametrize("found", [FOUND, Comparison(), replace(FOUND, first=replace(FOUND.first, error=float("inf")))])
def test_every_answer_fits_the_published_schema(found):
    answer = json.loads(render(found))

    jsonschema.validate(answer, published(Diff), cls=jsonschema.Draft202012Validator)


def test_what_the_design_names_is_there():
    answer = plain(written(FOUND))

    assert answer["schema"] == "hypocenter.comparison/1"
    assert answer["status"] == "diverged"
    wanted = {"step": 41, "microbatch": 1, "phase": "forward", "site": "layers.3.mlp", "port": "out[0]",
              "error": 2.0**-6, "floor": 2.0**-13}  # fmt: skip
    assert wanted.items() <= answer["first"].items()
    assert (answer["cause"], answer["confidence"], answer["why"]) == ("precision-mismatch", "possible", ["because"])
    assert (answer["matched"], answer["unmatched"]) == (1, {"baseline": 0, "candidate": 1})


def test_the_schema_knows_the_vocabulary_of_causes():
    assert set(published(Diff)["properties"]["cause"]["enum"]) == {*CAUSES, None}


def test_the_screen_begins_with_the_sentence_and_lists_what_is_unmatched():
    text = terminal.render(FOUND)

    assert text.startswith("diverged at step 41")
    assert "= cause: precision-mismatch (possible)" in text
    assert "without counterpart, of the candidate: 1 spot of 1 site" in text
    assert "layers.3.mlp out[0] (decoder.layers.3.mlp)" in text


def test_every_rendering_renders():
    for name in catalogue.names():
        assert catalogue.by_name(name)(FOUND).strip()
