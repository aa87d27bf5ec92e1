"""The page of a comparison as text: which lines the trees have, what is embedded, how large it gets."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from made_comparison import FLOOR, diverged, hostile, pair, row, same, spot

from hypocenter.compare.comparison import Comparison, Matching, SiteCard
from hypocenter.compare.judged_steps import FirstStep
from hypocenter.report.comparison import html, junit, sarif
from hypocenter.report.comparison.html import ruler
from hypocenter.report.comparison.page import payload
from hypocenter.report.comparison.page.payload import CODES, UNMATCHED, Material, states_of
from hypocenter.report.comparison.page.tree import tree_of

DIFFERS, EQUAL = CODES.index("differs"), CODES.index("equal")


def content(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(gzip.decompress(base64.b64decode(json.loads(found[1])["packed"])))


def test_what_is_one_module_stands_on_one_line_and_parts_stand_beside_the_whole():
    found, _ = diverged(n_blocks=2, at=1)

    lines = tree_of(found, ((), ())).lines
    names = [(line.baseline, line.candidate) for line in lines]

    assert names[0] == ("", "")
    assert ("layers.0", "decoder.layers.0") in names
    assert [other for mine, other in names if mine in ("layers.0.attn.q", "layers.0.attn.k", "layers.0.attn.v")] == [
        "decoder.layers.0.attention.qkv"
    ] * 3
    assert [line.is_part for line in lines if line.baseline in ("layers.0.attn.k", "layers.0.attn.v")] == [
        (False, True)
    ] * 2
    assert ("layers.0.act", None) in names
    assert (None, "decoder.layers.1.attention.core") in names


def test_one_module_against_several_stands_beside_each():
    whole, parts = spot("attn.qkv"), tuple(spot(f"attn.{name}") for name in "qkv")
    found = Comparison(matching=Matching(pairs=(pair(whole, parts, "renamed", "concatenated"),)))

    lines = tree_of(found, ((), ())).lines

    assert [(line.baseline, line.candidate) for line in lines[1:]] == [("attn.qkv", f"attn.{name}") for name in "qkv"]
    assert [line.is_part[0] for line in lines[1:]] == [False, True, True]


def test_every_module_has_a_line_and_every_pair_one_of_them_whatever_is_paired():
    numbers = np.random.default_rng(3)
    for _ in range(100):
        left = [spot(".".join(numbers.choice(list("abc"), numbers.integers(0, 4)))) for _ in range(12)]
        right = [spot(".".join(numbers.choice(list("abc"), numbers.integers(0, 4)))) for _ in range(12)]
        left, right = list(dict.fromkeys(left)), list(dict.fromkeys(right))
        n = int(numbers.integers(0, min(len(left), len(right)) + 1))
        order = numbers.permutation(len(right))
        pairs = tuple(pair(left[i], right[order[i]]) for i in range(n))
        found = Comparison(
            matching=Matching(
                pairs=pairs,
                unmatched_baseline=tuple(SiteCard(spot=one, order=i) for i, one in enumerate(left[n:])),
                unmatched_candidate=tuple(SiteCard(spot=right[i], order=int(i)) for i in order[n:]),
            )
        )

        tree = tree_of(found, ((), ()))

        assert {one.site for one in left} <= {line.baseline for line in tree.lines}
        assert {one.site for one in right} <= {line.candidate for line in tree.lines}
        assert all(tree.of_pair[one] for one in pairs)
        assert all(line.parent < at for at, line in enumerate(tree.lines))
        assert sum(len(spots) for side in tree.missing for spots in side.values()) == len(left) + len(right) - 2 * n


def test_a_line_shows_its_worst_row_and_a_parent_the_worst_below():
    found, material = diverged(n_blocks=2, at=1)
    tree = tree_of(found, ((), ()))
    at = {line.baseline: n for n, line in enumerate(tree.lines)}

    states = states_of(tree, material.scene.rows)

    assert states[at["layers.0.attn"]].own == EQUAL
    assert states[at["layers.0.norm"]].parts == [-1, EQUAL, DIFFERS]
    assert states[at["layers.1.norm"]].parts[1] == DIFFERS
    assert states[0].own == EQUAL
    assert states[0].below == DIFFERS
    assert states[0].n_rows == sum(len(tree.of_pair[one.pair]) for one in material.scene.rows)
    assert states[at["layers.0.act"]].own == UNMATCHED


def test_rows_stand_in_the_order_in_which_a_difference_travels_and_the_first_is_marked():
    found, material = diverged()

    data = content(html.render(found, material))

    for view in data["views"]:
        phases = [data["pairs"][one[0]][0] for one in view["rows"]]
        assert phases == sorted(phases, key=["forward", "grad"].index)
        assert data["pairs"][view["rows"][view["first"]][0]][1] == "layers.2.norm out[0]"
    assert [view["name"] for view in data["views"]] == ["step 0", "all steps"]


def test_rows_of_a_later_microbatch_stand_where_they_ran_first():
    found, material = diverged()
    late = tuple(replace(one, order=one.order + 1000) if n % 3 else one for n, one in enumerate(material.scene.rows))
    cards = tuple(SiteCard(spot=one.pair.baseline[0], order=n) for n, one in enumerate(material.scene.rows))

    data = content(html.render(found, replace(material, scene=replace(material.scene, rows=late, cards=(cards, ())))))

    (view, _) = data["views"]
    codes = [one[1] for one in view["rows"]]
    assert set(codes[: view["first"]]) == {EQUAL}


def test_what_a_program_is_told_has_no_ruler_and_no_floor():
    found, _ = diverged()
    told = replace(found.first.row, floor=replace(found.first.row.floor, source="none"))

    page = html.render(replace(found, first=replace(found.first, row=told)))

    assert "no noise: what a program is given or told must be equal" in page
    assert '<svg class="ruler"' not in page


def test_an_assumed_floor_counts_from_further_up():
    found, _ = diverged()
    row = replace(found.first.row, floor=replace(found.first.row.floor, source="assumed"))

    page = html.render(replace(found, first=replace(found.first, row=row)))

    assert "the error is 32,768 times it, where 64 times count" in page
    assert content(page)["limits"] == {
        "repeats": 8.0,
        "calibration": 8.0,
        "rounding": 4.0,
        "assumed": 64.0,
        "none": 1.0,
    }


def test_card_is_text_and_the_page_can_load_nothing():
    page = html.render(*diverged())
    text = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)

    assert "diverged at step 0, forward: layers.2.norm out[0] differs by 2^-5" in text
    assert "model.py:61" in text
    assert "config-mismatch (proven)" in text
    assert "set the same eps" in text
    assert "noise floor 2^-20 (9.54e-07, repeats, 3 samples); the error is 32,768 times it" in text
    assert "hypocenter show runs/new --site decoder.layers.2.norm --step 0 --values" in text
    assert "default-src &#39;none&#39;; script-src &#39;sha256-" in page
    assert not re.search(r"""(?:src|href|style)\s*=\s*["'](?!data:)""", text)


def test_hostile_names_stay_text():
    page = html.render(*hostile())

    assert "<img" not in page
    assert page.count("</script>") == 9
    assert content(page)["lines"]


def test_two_thousand_sites_fit_in_two_megabytes_with_all_rows():
    found, material = big(11_000)

    page = html.render(found, material)

    assert len(page.encode()) < 2_000_000
    assert [len(view["rows"]) for view in content(page)["views"]] == [11_000, 11_000]


def test_a_page_that_would_be_too_large_keeps_the_worst_rows_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(payload, "PACKED_BYTES", 30_000)
    found, material = big(3_000)

    data = content(html.render(found, material))
    (_, view) = data["views"]

    assert len(view["rows"]) < 3_000
    assert (
        f"{3_000 - len(view['rows']):,} of 3,000 rows, the least of them, are not on this page: see --json"
        in view["about"]
    )
    assert view["first"] >= 0
    kept = min(one[2] for one in view["rows"] if one is not view["rows"][view["first"]])
    assert kept >= sorted(one.distance.relative for one in found.rows)[-len(view["rows"])] * 0.99


def big(n: int) -> tuple[Comparison, Material]:
    numbers = np.random.default_rng(0)
    found, _ = diverged()
    spots = [spot(f"model.layers.{i // 100}.part_{i // 5 % 20}.linear", f"in[{i % 5}]") for i in range(n)]
    pairs = [pair(one, replace(one, site=f"decoder.{one.site}"), "renamed") for one in spots]
    rows = tuple(
        row(one, i, float(e)) for i, (one, e) in enumerate(zip(pairs, np.exp(numbers.normal(-12, 4, n)), strict=True))
    )
    first = replace(found.first, row=rows[n // 2])
    found = replace(found, rows=rows, matching=Matching(pairs=tuple(pairs)), first=first)
    return found, Material(scene=FirstStep(step=0, rows=rows))


@pytest.mark.parametrize("made", [diverged, same, hostile])
def test_the_page_needs_no_material(made):
    found, _ = made()

    assert content(html.render(found))["views"][0]["rows"]


def test_nothing_compared_is_a_page_too():
    assert "cannot tell" in html.render(Comparison(sentence="cannot tell: nothing"))


@pytest.mark.parametrize(
    ("error", "floor", "is_drawn"), [(0.5, FLOOR, True), (float("inf"), FLOOR, False), (0.5, 0.0, False)]
)
def test_the_ruler_is_drawn_for_numbers_that_have_a_logarithm(error, floor, is_drawn):
    found, _ = diverged()

    assert bool(ruler(replace(found.first, error=error, floor=floor), 4.0)) is is_drawn


def test_junit_has_a_case_per_phase_and_what_cannot_be_told_is_no_pass():
    found, _ = diverged()
    suite = ElementTree.fromstring(junit.render(found)).find("testsuite")
    unclear = ElementTree.fromstring(junit.render(replace(same()[0], status="cannot-tell"))).find("testsuite")
    fine = ElementTree.fromstring(junit.render(same()[0])).find("testsuite")

    assert [case.get("name") for case in suite] == ["verdict", "forward", "grad"]
    assert suite.get("failures") == "3"
    assert unclear.get("errors") == "1"
    assert (fine.get("failures"), fine.get("errors")) == ("0", "0")
    assert ElementTree.fromstring(junit.render(hostile()[0])) is not None


def test_sarif_names_the_line_of_the_first_divergence():
    run = json.loads(sarif.render(diverged()[0]))["runs"][0]
    unclear = json.loads(sarif.render(Comparison()))["runs"][0]

    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "model.py"}, "region": {"startLine": 61}}
    assert unclear["results"] == []
    assert unclear["invocations"][0]["executionSuccessful"] is False
