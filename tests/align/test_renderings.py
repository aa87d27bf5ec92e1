"""The screen and the page of results that no program has to be run for."""

from __future__ import annotations

from json import loads
from pathlib import Path

import jsonschema

from hypocenter.align.alignment import STAGES, Alignment, StageResult, result
from hypocenter.align.engine import alignment_of
from hypocenter.align.plan import plan_of
from hypocenter.json_answer import published, to_json
from hypocenter.report.alignment import html, terminal

PLAN = plan_of({"baseline": {"command": "a"}, "candidate": {"command": "b"}}, Path("plan.toml"))


def _results(*verdicts: str) -> list[StageResult]:
    made = [result(n, verdict, f"sentence {n}") for n, verdict in enumerate(verdicts)]  # type: ignore[arg-type]
    return made + [result(n, "not-run", "") for n in range(len(made), len(STAGES))]


def test_only_the_stage_that_failed_is_told_in_full() -> None:
    results = _results("skipped", "passed")
    results[2] = result(
        2, "failed", "a is apart", step=0, phase="forward", site="", cause="config-mismatch", confidence="proven",
        why=("one reason",), next=("hypocenter diff a b",),
    )  # fmt: skip

    text = terminal.render(alignment_of(PLAN, results))

    assert text.startswith("stopped at stage 2, forward: a is apart\n")
    assert "✗ 2 forward     failed      a is apart\n    --> the model itself at step 0 (forward)\n" in text
    assert "= why: one reason" in text
    assert "= cause: config-mismatch (proven)" in text
    assert "= next: hypocenter diff a b\n" in text
    assert "· 3 backward    not done\n" in text


def test_a_doubt_is_never_aligned() -> None:
    passed = ["passed"] * 9

    assert alignment_of(PLAN, _results(*passed)).status == "aligned"
    assert alignment_of(PLAN, _results(*passed[:5], "cannot-tell", *passed[6:])).status == "cannot-tell"
    assert alignment_of(PLAN, _results("passed", "passed")).status == "cannot-tell"
    assert alignment_of(PLAN, _results(*["skipped"] * 9)).status == "cannot-tell"
    found = alignment_of(PLAN, _results("skipped", *passed[1:8], "skipped"))
    assert found.sentence == "aligned: 7 stages passed; not done: 0 checklist, 8 widening"


def test_texts_of_programs_are_escaped_on_the_page_and_json_keeps_to_its_schema() -> None:
    results = _results("passed", "passed", "passed")
    results[3] = result(
        3, "failed", "<script>alert(1)</script>", site="<b>", why=("<i>",),
        figures={"local_norms": [_norm("<b>", 0.5), _norm("other", 0.01)]},
    )  # fmt: skip
    found = alignment_of(PLAN, results)

    page = html.render(found)

    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<b>" not in page
    jsonschema.validate(loads(to_json(found)), published(Alignment))


def test_bars_never_leave_out_what_differs() -> None:
    norms = [_norm(f"p{n}.weight", 0.01) for n in range(200)] + [_norm("last.weight", 0.5)]

    drawn = html.norms_svg(norms)

    assert "last.weight" in drawn
    assert "141 not shown" in drawn
    assert drawn.count('class="row"') == 1


def test_a_curve_of_one_point_is_not_drawn() -> None:
    figure = {"name": "loss", "steps": [0, 1], "baseline": [1.0, None], "candidate": [1.0, 2.0], "floor": [0.1, 0.1]}

    assert html.inline_curve({"name": "loss", "steps": [0], "baseline": [1.0], "candidate": [1.0]}) is None
    assert "<svg" in (html.inline_curve(figure) or "")


def _norm(site: str, error: float) -> dict[str, object]:
    verdict = "differs" if error > 0.1 else "within-noise"
    return {"site": site, "baseline": 1.0, "candidate": 1.1, "error": error, "floor": 0.01, "verdict": verdict}
