"""The answer of `headroom` against casting the very tensors that were recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import jsonschema
import numpy as np
import pytest
import torch
from headroom_fakes import ask, row, sample, spread, table

from hypocenter.formats import find_format
from hypocenter.json_answer import published, to_json
from hypocenter.nouns import Reading, Source, StepRecord, Summary, replace
from hypocenter.report.headroom.answer import Answer
from hypocenter.report.headroom.gather import gather
from hypocenter.report.headroom.html import html
from hypocenter.report.headroom.json import Headroom, written
from hypocenter.report.headroom.picture import svg
from hypocenter.report.headroom.sentences import (
    axis_of,
    headline,
    level,
    number,
    percent,
    phase_line,
    shares,
    window_lines,
)
from hypocenter.report.headroom.terminal import render
from hypocenter.report.screen import Screen
from hypocenter.summary.reducers.numpy import summarize

HALF = find_format("fp16")


@pytest.mark.parametrize("form", ["float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("scale", [1.0, 1024.0, 2.0**-4])
def test_fractions_are_those_of_a_cast(form: str, scale: float) -> None:
    tensors = [spread(seed, low, high) for seed, (low, high) in enumerate([(-30, -8), (-22, 3), (0, 12), (6, 18)])]
    limits = find_format(form)

    found = ask([row(x, phase="backward", site=f"s{i}", order=i) for i, x in enumerate(tensors)], scale, form=form)

    for x, line in zip(tensors, found.lines, strict=True):
        cast = torch.from_numpy(np.abs(x) * scale).to(getattr(torch, form)).double().numpy()
        lost = np.mean((cast == 0) & (x != 0))
        beyond = np.abs(x) * scale >= float(limits.overflows_from)
        on_the_limit = np.mean(np.abs(x) * scale == float(limits.flushes_to))
        assert line.flushed == pytest.approx(lost, abs=on_the_limit + 1 / x.size)
        assert line.overflows == beyond.any()
        top_octave = np.mean(
            (np.abs(x) * scale >= 2.0**limits.largest_exponent)
            & (np.abs(x) * scale < 2.0 ** (limits.largest_exponent + 1))
        )
        assert line.overflow == pytest.approx(beyond.mean(), abs=top_octave + 1e-9)
        assert line.bits == pytest.approx(math.log2(limits.max / (np.abs(x).max() * scale)))


def test_the_run_is_answered_in_one_sentence() -> None:
    rows = [
        row(np.array([1.0, 300.0]), site="a"),
        row(np.array([2.0, 70000.0]), site="b", order=1, step=4),
        row(np.array([1e-9, *[1.0] * 249]), site="b.weight", port="grad", phase="grad", order=2),
        row(np.array([1.0, 2.0]), site="c", port="grad_out[0]", phase="backward", order=3),
    ]

    said = headline(ask(rows, 65504.0))

    assert said == (
        "in float16 at scale 65,504: 2 of 4 sites would overflow, first b out[0] (largest at step 4); 0 % of gradients "
        "would become zero"
    )
    assert "0.4 % of gradients would become zero" in headline(ask(rows, 1.0))
    assert ask(rows, 65504.0).status == "overflows"


def test_a_loss_scale_touches_backward_and_gradients_only() -> None:
    rows = [
        row(np.array([64.0]), phase=p, site=p, port="value" if p == "param" else "x")
        for p in ("forward", "param", "backward", "grad")
    ]

    bits = {line.phase: line.bits for line in ask(rows, 16.0).lines}

    assert bits["forward"] == bits["param"] == pytest.approx(math.log2(65504 / 64))
    assert bits["backward"] == bits["grad"] == pytest.approx(math.log2(65504 / 1024))


def test_the_scale_that_backward_carried_is_taken_out_first() -> None:
    true = np.array([1e-3, 1.0])
    rows = [row(true * s, phase="backward", step=i) for i, s in enumerate([1024.0, 4096.0])]
    records = [StepRecord(step=i, loss_scale=s) for i, s in enumerate([1024.0, 4096.0])]

    own, asked = ask(rows, None, *records), ask(rows, 256.0, *records)

    assert own.recorded == (1024.0, 4096.0)
    assert [line.absmax for line in own.lines] == [4096.0]
    assert [line.absmax for line in asked.lines] == [256.0]
    assert asked.lines[0].n == 4
    assert "at the recorded scale (1,024 to 4,096)" in headline(own)
    assert own.window is not None
    assert own.window.below is not None
    assert float(own.window.below) == 65520.0


@pytest.mark.parametrize("left_in", [True, False])
def test_whether_gradients_still_carry_the_scale_is_told_by_the_grad_norm(left_in: bool) -> None:
    true = np.array([3.0, 4.0])
    rows = [row(true * (512.0 if left_in else 1.0), phase="grad", port="grad", site="w")]

    (gathered,) = gather(table(rows), [(0, StepRecord(step=0, loss_scale=512.0, grad_norm=5.0))])

    assert gathered.carried == (512.0 if left_in else 1.0)
    assert gathered.recorded == 512.0


def test_masks_are_not_overflow() -> None:
    low = torch.finfo(torch.bfloat16).min
    rows = [
        row(np.array([-np.inf, 3.0]), site="mask"),
        row(replace(summarize(np.array([np.inf, 3.0])), n=2), site="literal", literal_inf=True, order=1),
        row(np.array([low, 5.0, -7.0, 0.25]), site="finfo", order=2),
        row(np.array([np.inf, 3.0]), site="real", order=3),
    ]

    found = {line.site: line for line in ask(rows).lines}

    assert [found[s].n_nonfinite for s in ("mask", "literal", "finfo", "real")] == [0, 0, 0, 1]
    assert not any(line.overflows for line in found.values())
    assert found["finfo"].absmax <= 7.0
    assert found["finfo"].absmax >= 4.0


def test_inputs_recomputes_replays_and_numbers_of_a_step_are_left_out() -> None:
    rows = [
        row(np.ones(1), site="kept"), row(np.ones(1), port="in[0]"), row(np.ones(1), recompute=True),
        row(np.ones(1), replay=True), row(np.ones(1), port="terms[0]", op="aten.sum.default"),
        row(np.ones(1), phase="grad", site="grad_norm", port="value"), row(np.ones(1), dtype="int64"),
        row(np.ones(1), op="aten.empty.memory_format"), row(np.ones(1), phase="optimizer", port="exp_avg"),
    ]  # fmt: skip

    assert [line.site for line in ask(rows).lines] == ["kept"]


def test_a_replay_answers_where_the_run_recorded_nothing_and_says_so() -> None:
    rows = [row(np.ones(3), replay=True), row(Summary(n=4, sumsq=4.0), phase="grad", port="grad", site="w")]

    found = ask(rows)

    assert [(line.site, line.is_replay) for line in found.lines] == [("a", True), ("w", False)]
    assert any("from the replay" in note for note in found.notes)


def test_norms_bound_what_they_can() -> None:
    rows = [
        row(Summary(n=100, sumsq=100.0 * 200.0**2), phase="grad", port="grad", site="sure"),
        row(Summary(n=100, sumsq=4.0), phase="grad", port="grad", site="safe", order=1),
        row(Summary(n=10**6, sumsq=100.0**2), phase="grad", port="grad", site="open", order=2),
    ]

    found = ask(rows, 1024.0)

    assert [line.overflows for line in found.lines] == [True, False, None]
    assert [line.flushed for line in found.lines] == [None, None, None]
    assert found.lines[0].bits == pytest.approx(math.log2(65504 / (2000.0 * 1024)))
    assert found.lines[0].bits_at_most == pytest.approx(math.log2(65504 / (200.0 * 1024)))
    assert found.window is None
    assert "--level modules" in found.notes[0]
    assert "of 1 it cannot be told" in headline(found)
    assert ask(rows[2:], 1024.0).status == "cannot-tell"


def diary(values: np.ndarray, **more: object) -> Reading:
    """What the loss-scale diary writes of a gradient: its largest element, the scale still in it."""
    whole = summarize(values)
    return row(replace(whole, n_hist=0, n_zero=0, absmin=None, hist=(), hist_first=0, min=None, max=None),
               **({"phase": "scaler", "port": "scaled_grad", "site": "w", "dtype": "float32"} | more))  # fmt: skip


def test_the_diary_bounds_the_scale_from_above_where_only_norms_were_recorded() -> None:
    norm = row(Summary(n=4, sumsq=16.0), phase="grad", port="grad", site="w", dtype="float32")
    record = StepRecord(step=0, loss_scale=1024.0, grad_norm=4.0)

    found = ask([norm, diary(np.array([1.0, 2048.0]))], None, record)

    (line,) = found.lines
    assert (line.phase, line.site, line.known, line.absmax, line.flushed) == ("grad", "w", "largest", 2048.0, None)
    assert list(window_lines(found)) == [
        "loss scales at which no recorded gradient overflows in float16: up to 2^14 (16,384); w grad less than 32,760"
    ]
    assert "by the loss-scale diary" in found.notes[0]
    assert ask([norm, diary(np.array([1.0, 2048.0]))], 65536.0, record).status == "overflows"


def test_the_diary_adds_extremes_to_steps_that_were_recorded_in_full() -> None:
    rows = [
        row(np.array([1.0, 2.0]), phase="grad", port="grad", site="w", dtype="float32"),
        diary(np.array([512.0]), step=1),
    ]
    records = [StepRecord(step=step, loss_scale=1.0, grad_norm=1.0) for step in range(2)]

    (line,) = ask(rows, 1.0, *records).lines

    assert (line.known, line.absmax, line.step, line.flushed) == ("values", 512.0, 1, 0.0)


def test_what_was_infinite_at_a_larger_scale_need_not_be_at_a_smaller() -> None:
    rows = [row(np.array([np.inf, 100.0]), phase="backward", port="grad_out[0]", dtype="float16")]
    record = StepRecord(step=0, loss_scale=1024.0)

    assert ask(rows, None, record).status == "overflows"
    assert ask(rows, 2048.0, record).status == "overflows"
    assert ask(rows, 512.0, record).status == "fits"
    assert "1 was NaN or infinite as recorded" in headline(ask(rows, None, record))


def test_norms_smaller_than_anything_are_surely_lost() -> None:
    (line,) = ask([row(Summary(n=4, sumsq=1e-30), phase="grad", port="grad")], 1.0).lines

    assert line.flushed == 1.0


def test_nothing_recorded_is_not_a_pass() -> None:
    found = ask([])

    assert found.status == "cannot-tell"
    assert headline(found) == "in float16: cannot tell, no floating-point values were recorded here"


def test_the_window_names_its_sites_and_the_largest_usable_scale() -> None:
    rows = [
        row(np.array([1e-4, 1e-2]), phase="grad", port="grad", site="embed.weight"),
        row(np.array([0.5, 100.0]), phase="grad", port="grad", site="head.weight", order=1),
    ]

    found = ask(rows)
    (strict, largest) = window_lines(found)

    assert found.window is not None
    assert (found.window.lowest_site, found.window.highest_site) == ("embed.weight grad", "head.weight grad")
    assert found.window.holds(512.0)
    assert not found.window.holds(1024.0)
    assert strict.startswith("loss scales that lose no recorded gradient in float16: 2^-11 to 2^9 (512);")
    assert "embed.weight grad needs more than" in strict
    assert (
        largest
        == "the largest power of two at which none overflows is 2^9 (512); 0 % of all gradients would become zero there"
    )


def test_an_empty_window_is_said_to_be_empty_and_what_a_thousandth_buys() -> None:
    rows = [
        row(np.array([1e-30, *[1e-3] * 9999]), phase="grad", port="grad", site="low"),
        row(np.array([1000.0]), phase="grad", port="grad", site="high", order=1),
    ]

    strict, largest, lost = window_lines(ask(rows))

    assert strict.startswith("no loss scale keeps every recorded gradient in float16: low grad needs more than")
    assert strict.endswith("high grad less than 65.5")
    assert (
        largest
        == "the largest power of two at which none overflows is 2^6 (64); <0.01 % of all gradients would become zero "
        "there"
    )
    assert lost == "scales that lose at most 0.1 % of the nonzero elements of each site: 2^-14 to 2^6 (64)"


def reduction(
    op: str, terms: list[np.ndarray], shape: tuple[int, ...], out: np.ndarray, **more: object
) -> list[Reading]:
    source = Source(file="model.py", line=7, text="total = k.sum(1)")
    given = {"op": op, "source": source} | more
    read = [row(x, port=f"terms[{i}]", shape=x.shape, order=i, **given) for i, x in enumerate(terms)]
    return [*read, row(out, shape=shape, order=9, **given)]


def test_a_sum_says_from_which_length_on_it_overflows() -> None:
    rows = reduction("aten.sum.dim_IntList", [np.full((1, 4096, 8), 10.0)], (1, 8), np.full(8, 40960.0))

    (found,) = ask(rows).reductions

    assert found.sentence(HALF) == "in float16 it overflows from about 6,550 terms on (now 4,096)"
    assert (found.source, found.line, found.bound, found.present) == ("total = k.sum(1)", 7, "expected", 4096.0)


def test_mixed_signs_give_the_bound_by_rms_and_say_so() -> None:
    x = np.tile(np.array([10.0, -10.0]), 2048)

    (found,) = ask(reduction("aten.sum.default", [x], (), np.zeros(1))).reductions

    assert found.sentence(HALF) == "in float16 it cannot overflow below 6,550 terms (now 4,096)"


@pytest.mark.parametrize(
    ("op", "terms", "shape", "out", "said"),
    [
        ("aten.pow.Tensor_Scalar", [np.array([200.0])], (1,), np.array([4e4]), "overflows float16 from |x| 256 on"),
        ("aten.bmm.default", [np.full((1, 2, 64), 8.0), np.full((1, 64, 2), 8.0)], (1, 2, 2), np.full(4, 4096.0),
         "an inner dimension of 1,024 on if it grows in proportion (now 64); never below 1,024"),
        ("aten.linalg_vector_norm.default", [np.full(16, 8192.0)], (), np.array([32768.0]), "64 terms on (now 16)"),
        ("aten.mean.dim", [np.full((1, 1000), 100.0)], (1,), np.array([100.0]),
         "from about 655 terms on (now 1,000), if partial sums are kept in it"),
    ],
)  # fmt: skip
def test_other_reductions(op: str, terms: list[np.ndarray], shape: tuple[int, ...], out: np.ndarray, said: str) -> None:
    assert any(said in r.sentence(HALF) for r in ask(reduction(op, terms, shape, out)).reductions)


@pytest.mark.parametrize(
    ("op", "terms", "shape", "out"),
    [
        ("aten.sum.default", [np.full(16, 1.0)], (), np.array([16.0])),
        ("aten.pow.Tensor_Scalar", [np.array([200.0])], (1,), np.array([8e6])),  # a cube
        ("aten.mean.dim", [np.full((1, 8), 1.0)], (1,), np.array([1.0])),
    ],
)
def test_reductions_far_from_their_limit_are_not_listed(
    op: str, terms: list[np.ndarray], shape: tuple[int, ...], out: np.ndarray
) -> None:
    assert ask(reduction(op, terms, shape, out)).reductions == ()


def test_json_validates_and_bare_nan_never_appears() -> None:
    schema = published(Headroom)
    jsonschema.Draft202012Validator.check_schema(schema)

    for found in (
        sample(),
        ask([]),
        ask([row(Summary(n=4, sumsq=4.0), phase="grad")]),
        ask(reduction("aten.sum.default", [np.full(9000, 10.0)], (), np.ones(1))),
    ):
        text = to_json(written(found, "r"))
        jsonschema.Draft202012Validator(schema).validate(json.loads(text, parse_constant=lambda c: pytest.fail(c)))
        assert json.loads(text)["schema"] == "hypocenter.headroom/1" == schema["$id"]


@pytest.mark.parametrize("width", [40, 72, 100, 120])
@pytest.mark.parametrize("has_unicode", [True, False])
def test_the_screen_is_never_wider_than_it_is(width: int, has_unicode: bool) -> None:
    text = render(sample(), Screen(width=width), rows=4, has_unicode=has_unicode)

    wide = [line for line in text.splitlines() if len(line) > width]
    assert "\x1b" not in text
    assert text.isascii() or has_unicode
    assert not wide or width == 40
    assert "16 sites not shown, see them with --rows 0 or --json" in text


def test_colour_is_only_an_addition() -> None:
    plain = render(sample(), Screen(), rows=4)
    coloured = render(sample(), Screen(colour=True), rows=4)

    import re

    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert coloured != plain


@pytest.mark.parametrize("draw", [svg, lambda found, run: html([found], run)])
def test_a_picture_stands_alone_and_escapes_names(draw: Callable[[Answer, str], str]) -> None:
    text = draw(sample(), "run <1>")

    assert "blocks.3.&lt;b&gt;&amp;" in text
    assert "<b>" not in text
    assert "run &lt;1&gt;" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_cells_show_where_values_lie() -> None:
    axis = axis_of(HALF, 64)
    (line,) = ask([row(np.array([2.0**-30, 2.0**-20, 1.0, 1.0, 2.0**20]))]).lines

    found = shares(line, axis)

    zones = {axis.zones[i]: share for i, share in enumerate(found) if share}
    assert zones == {"zero": 0.2, "subnormal": 0.2, "normal": 0.4, "overflow": 0.2}
    assert sum(found) == pytest.approx(1.0)
    assert [level(s, 5) for s in (0.0, 1e-6, 0.0009, 0.005, 0.05, 0.5)] == [0, 1, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.004, "0.4 %"), (1e-6, "<0.01 %"), (0.5, "50 %"), (0.9999, "99.9 %"), (1.0, "100 %"), (None, "?")],
)
def test_percentages_are_never_rounded_to_none_or_all(share: float | None, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"), [(65536.0, "65,536"), (0.5, "0.5"), (2.0**40, "2^40"), (20.25, "20.2"), (1.5e-7, "1.5e-07")]
)
def test_scales_are_written_readably(value: float, text: str) -> None:
    assert number(value) == text


def test_each_phase_has_a_line() -> None:
    found = sample()

    assert phase_line(found.phases[0]).startswith("forward: 20 sites, 3 overflow, least headroom -")
    assert [t.phase for t in found.phases] == ["forward", "backward"]
