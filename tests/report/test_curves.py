"""The screen and the chart of a curve comparison, fed by answers made by hand."""

from __future__ import annotations

from xml.etree import ElementTree

from hypocenter.compare.curves.comparison import Check, CurveComparison, CurveSide, Departure, Spike, Track
from hypocenter.report import curves_picture, curves_screen
from hypocenter.report.screen import Screen


def answer(**others: object) -> CurveComparison:
    side = CurveSide(source="a.log", kind="megatron", n_points=100, first_step=0, last_step=99, problems=("torn line",))
    track = Track(
        steps=(0, 50, 99), baseline=(3.0, 2.0, 1.0), candidate=(3.0, 2.0, 1.5), difference=(0.0, 0.0, 0.5),
        floor=(0.1, 0.1, 0.1),
    )  # fmt: skip
    given: dict[str, object] = {
        "status": "departed", "sentence": "departed at step 51: <the loss> is 0.5 above", "baseline": side,
        "candidate": side, "track": track, "why": ("the loss is apart",), "next": ("look at the optimizer",),
        "departure": Departure(series="loss", step=51, seen_step=60, until=None, gap=0.5, floor=0.1),
        "checks": (Check(name="sustained", status="fail", text="apart from step 51 on", limit=0.1, actual=0.5),),
        "spikes": tuple(
            Spike(side="candidate", step=n, value=9.0, usual=2.0, size=50.0, digest="ab12-cd") for n in range(7)
        ),
    }  # fmt: skip
    return CurveComparison(**{**given, **others})  # type: ignore[arg-type]


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
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) == 4


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
