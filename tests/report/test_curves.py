"""The screen and the chart of a curve comparison, fed by answers made by hand."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
from curves_fakes import answer

from hypocenter.compare.curves.comparison import Track
from hypocenter.compare.curves.curve import Curve, Series
from hypocenter.compare.curves.of_runs import drawn
from hypocenter.report import curves_html, curves_picture, curves_screen
from hypocenter.report.screen import Screen


def test_the_sentence_comes_first_and_what_to_do_last() -> None:
    lines = curves_screen.render(answer(), Screen(width=100)).splitlines()

    assert lines[0] == "departed at step 51: <the loss> is 0.5 above"
    assert lines[-1] == "next: look at the optimizer"
    assert any(line.split()[:4] == ["sustained", "fail", "0.1", "0.5"] for line in lines)
    assert any("batch ab12-cd" in line for line in lines)
    assert any("2 spikes not shown" in line for line in lines)
    assert "note: baseline: torn line" in lines


def test_without_drawing_characters_the_line_is_ascii() -> None:
    text = curves_screen.render(answer(), Screen(), can_draw=False)

    line = next(line for line in text.splitlines() if "difference" in line)
    assert line.isascii()


def test_the_chart_is_well_formed_and_marks_the_step() -> None:
    root = ElementTree.fromstring(curves_picture.document(answer()).partition("\n")[2])

    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "step 51" in texts
    assert any(text is not None and "<the loss>" in text for text in texts)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) == 4 + 3  # curves, and samples of the legend


def test_an_answer_without_points_is_drawn_as_such() -> None:
    empty = curves_picture.inline(answer(track=Track(), departure=None))

    assert "nothing to draw" in empty
    assert "difference" not in curves_screen.render(answer(track=Track()), Screen())


def test_values_that_are_missing_break_the_line() -> None:
    track = Track(
        steps=(0, 1, 2), baseline=(1.0, None, 1.0), candidate=(1.0, float("nan"), 1.0), difference=(0.0, None, 0.0),
        floor=(0.1, 0.1, 0.1),
    )  # fmt: skip

    assert "nan" not in curves_picture.inline(answer(track=track)).lower()


def curve(source: str, peak: float) -> Curve:
    steps = np.arange(40)
    values = {"loss": 3.0 / (1.0 + steps), "lr": np.where(steps < 20, 0.1, peak)}
    series = {name: Series(name=name, steps=steps, values=array) for name, array in values.items()}
    return Curve(source=source, kind="csv", series=series, counts_from=0)


def test_a_sheet_has_a_panel_of_learning_rates_that_marks_where_they_part() -> None:
    found = drawn(curve("a/log.csv", 0.1), curve("b/log.csv", 0.3))

    sheet = curves_picture.sheet([(one.name, one.found) for one in found])

    panels = ElementTree.fromstring(sheet.partition("\n")[2]).findall("{http://www.w3.org/2000/svg}svg")
    texts = [[text.text or "" for text in panel.iter("{http://www.w3.org/2000/svg}text")] for panel in panels]
    assert [one.name for one in found] == ["loss", "learning rate"]
    assert "step 20" in texts[1]
    assert {"baseline a/log.csv", "candidate b/log.csv"} <= set(texts[0])
    assert "difference 0" in texts[0]
    assert int(panels[1].get("y") or 0) > 300


def test_the_page_has_every_rule_and_chart_and_escapes_what_a_log_says() -> None:
    page = curves_html.render(answer(), [("loss", answer())])

    assert "&lt;the loss&gt;" in page
    assert "<the loss>" not in page
    assert page.count("<svg") == 2  # one of them for a phone
    assert "✗ fail" in page
    assert "<script" not in page
