"""Fits on cases made by hand: what they say without facts, and what they leave alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from hypocenter.compare.case import Case, PairedRow, Values
from hypocenter.compare.comparison import (
    Comparison,
    Distance,
    Divergence,
    Fit,
    Floor,
    Pair,
    RowComparison,
    SiteCard,
    Spot,
)  # fmt: skip
from hypocenter.compare.fits.activation_variant import activation_variant
from hypocenter.compare.fits.clipping import clipping
from hypocenter.compare.fits.initialisation import initialisation
from hypocenter.compare.fits.learning_rate import learning_rate
from hypocenter.compare.fits.missing_bias import missing_bias
from hypocenter.compare.fits.norm_eps import norm_eps
from hypocenter.compare.fits.precision_of_one_module import precision_of_one_module
from hypocenter.compare.fits.scale_factor import scale_factor
from hypocenter.compare.fits.setting import setting
from hypocenter.compare.fitting import Hypothesis, accepted, fits
from hypocenter.compare.outcome import with_fit
from hypocenter.nouns import Run
from hypocenter.record.facts_file import Facts, ModuleFacts
from hypocenter.summary.sketch import sketch


def row(phase, site, port, baseline, candidate, *, step=0, order=0, verdict="differs", **distance):
    spot = Spot(phase=phase, site=site, port=port)
    told = {"relative": 0.5, "low": 0.4, "high": 0.6} | distance
    return PairedRow(
        comparison=RowComparison(
            pair=Pair(baseline=(spot,), candidate=(spot,), by="exact"), step=step, microbatch=0, order=order,
            distance=Distance(depth="sketch", **told), floor=Floor(relative=1e-6), verdict=verdict,
        ),
        baseline=baseline, candidate=candidate, stage=0,
    )  # fmt: skip


def case(first: PairedRow, *others: PairedRow, phase=None, **given) -> Case:
    spot = first.spot
    return Case(
        comparison=Comparison(status="diverged"), runs=(Run(format=1, name="a"), Run(format=1, name="b")),
        step=(first, *others),
        first=Divergence(
            step=0, microbatch=0, phase=phase or spot.phase, site=spot.site, port=spot.port, candidate_site=spot.site,
            error=0.5, floor=1e-6, inputs_agree=True, row=first.comparison,
        ),
        **given,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("least", "wanted"), [(-0.169971, "exact GELU"), (-0.170041, "GELU by tanh"), (-0.163611, "GELU by sigmoid")]
)
def test_an_activation_is_known_by_its_smallest_value(least, wanted):
    silu = Values(n=9999, min=-0.278465, max=3.0)
    found = activation_variant(case(row("forward", "mlp.act", "out[0]", silu, Values(n=9999, min=least, max=3.0))))

    assert found.values == {"baseline": "SiLU", "candidate": wanted}


def test_smallest_values_that_belong_to_no_function_say_nothing():
    values = Values(n=9999, min=-0.2, max=3.0), Values(n=9999, min=-0.169971, max=3.0)

    assert activation_variant(case(row("forward", "mlp.act", "out[0]", *values))) is None


@pytest.mark.parametrize(("mine", "other"), [(1e-6, 1e-3), (1e-3, 1e-6), (1e-5, 1e-2)])
def test_eps_without_facts_follows_from_the_factor(mine, other):
    mean_square, n = 0.01, 1000
    factor = math.sqrt((mean_square + mine) / (mean_square + other))
    given = row("forward", "norm", "in[0]", Values(n=n, sumsq=n * mean_square), Values(n=n, sumsq=n * mean_square),
                verdict="equal")  # fmt: skip
    out = row("forward", "norm", "out[0]", Values(n=n, sumsq=n), Values(n=n, sumsq=n * factor**2), scale=factor)

    found = norm_eps(case(out, given))

    assert (found.values["baseline"], found.values["candidate"]) == (mine, other)
    assert found.confidence == "possible"


def test_a_schedule_that_lags_is_told_from_another_peak():
    def rates(candidate):
        return tuple(
            row("optimizer", "lr", "value", Values(n=1, sum=a), Values(n=1, sum=b), step=step)
            for step, (a, b) in enumerate(zip((1.0, 2.0, 3.0, 4.0), candidate, strict=True))
        )

    lags, doubled = rates((0.0, 1.0, 2.0, 3.0)), rates((2.0, 4.0, 6.0, 8.0))

    assert "lags" in learning_rate(case(lags[0], series=lambda pair: lags)).text
    assert "2 times" in learning_rate(case(doubled[0], series=lambda pair: doubled)).text


@pytest.mark.parametrize(("square", "is_found"), [(2.0, True), (3.2, False)])
def test_a_bias_on_one_side_must_explain_how_far_outputs_are_apart(square, is_found):
    spot = Spot(phase="param", site="q_proj.bias", port="value")
    card = SiteCard(spot=spot, order=0, n=10, sumsq=square)
    out = row("forward", "q_proj", "out[0]", Values(n=1000, sumsq=800.0), Values(n=1000, sumsq=600.0), relative=0.5,
              low=0.45, high=0.55)  # fmt: skip

    found = missing_bias(case(out, cards=({spot: card}, {})))

    assert (found is not None) == is_found


def test_a_bias_that_an_adapter_has_taken_into_itself_is_not_missing():
    spot = Spot(phase="param", site="q_proj.bias", port="value")
    inner = Spot(phase="param", site="q_proj.inner.bias", port="value")
    card = SiteCard(spot=spot, order=0, n=10, sumsq=2.0)
    out = row("forward", "q_proj", "out[0]", Values(n=1000, sumsq=800.0), Values(n=1000, sumsq=600.0), relative=0.5,
              low=0.45, high=0.55)  # fmt: skip

    found = missing_bias(case(out, cards=({spot: card}, {inner: replace(card, spot=inner)})))

    assert found is None


@pytest.mark.parametrize("width", [32, 200])
def test_a_bias_that_is_missing_is_known_by_sketches_alone(width):
    numbers = np.random.default_rng(width)
    out, bias = numbers.standard_normal((8, 32, width)), 0.1 * numbers.standard_normal(width)
    spots = {port: Spot(phase=phase, site=site, port=port) for phase, site, port in
             (("forward", "down", "out[0]"), ("param", "down.bias", "value"))}  # fmt: skip

    def found(candidate):
        sides = [Values(dtype="float32", n=v.size, sumsq=float((v**2).sum()), sketch=sketch(v.astype(np.float32)))
                 for v in (out, candidate)]  # fmt: skip
        cards = {
            spots["out[0]"]: SiteCard(spot=spots["out[0]"], order=0, shape=out.shape),
            spots["value"]: SiteCard(spot=spots["value"], order=0, n=width, shape=(width,), sumsq=float(bias @ bias),
                                     sketch=tuple(sketch(bias.astype(np.float32)).tolist())),
        }  # fmt: skip
        return missing_bias(case(row("forward", "down", "out[0]", *sides), cards=(cards, {})))

    assert "no bias in the candidate" in found(out - bias).text
    assert found(out + numbers.standard_normal(out.shape) * np.sqrt(np.mean(bias**2))) is None
    assert found(out - 4.0 * bias) is None


def test_eps_is_known_by_the_name_of_the_other_framework():
    facts = [Facts(modules=(ModuleFacts(path="norm", kind="LayerNorm", attributes=given),))
             for given in ({"eps": 1e-5}, {"epsilon": 1e-7})]  # fmt: skip
    first = row("forward", "norm", "out[0]", Values(n=10, sumsq=1.0), Values(n=10, sumsq=1.1))

    found = norm_eps(case(first, facts=tuple(facts)))

    assert found.text == "eps of norm is 1e-05 in the baseline and 1e-07 in the candidate"


def test_another_draw_and_another_deviation_are_told_apart():
    mine = Values(dtype="float32", n=100, sum=1.0, sumsq=4.0, min=-1.0, max=1.0, absmax=1.0)
    twice = replace(mine, sum=2.0, sumsq=16.0, min=-2.0, max=2.0, absmax=2.0)
    other = replace(mine, sum=-1.5, sumsq=4.2, min=-0.9, max=1.1, absmax=1.1)

    scaled = initialisation(case(row("param", "w", "value", mine, twice, relative=1.0, cosine=1.0, scale=2.0)))
    drawn = initialisation(case(row("param", "w", "value", mine, other, relative=1.4, cosine=0.01)))

    assert "2 times as large" in scaled.text
    assert "other random numbers" in drawn.text


def test_gradients_by_one_factor_whose_norm_before_differs_are_not_clippings():
    def gradients(before):
        rows = [
            row("grad", name, "grad", Values(n=10, sumsq=4.0), Values(n=10, sumsq=1.0), order=i)
            for i, name in enumerate("abc")
        ]
        norm = row("grad", "grad_norm", "value", Values(n=1, sum=5.0), Values(n=1, sum=5.0), verdict=before)
        return case(*rows, norm)

    assert clipping(gradients("equal")) is not None
    assert clipping(gradients("differs")) is None


def test_two_numbers_are_no_factor_unless_it_is_a_known_one():
    def losses(candidate):
        return case(row("loss", "loss", "value", Values(n=1, sum=3.0, sumsq=9.0),
                        Values(n=1, sum=candidate, sumsq=candidate**2), scale=candidate / 3.0))  # fmt: skip

    assert scale_factor(losses(3.7)) is None
    assert scale_factor(losses(1.5)).values["known"] == "2^-1"


def test_of_two_fits_that_tie_both_are_said_and_neither_is_sure():
    fits = [
        Fit(name=name, cause="config-mismatch", explained=1.0, confidence="likely", text=f"it is {name}")
        for name in ("one", "two")
    ]

    found = with_fit(Comparison(status="diverged", cause="unknown"), fits)

    assert found.confidence == "possible"
    assert "it is one" in found.why[0]
    assert "it is two" in found.why[1]


@pytest.mark.parametrize(
    ("extremes", "is_short"),
    [((1.0, 1.0), False), ((-0.5, 1.5), False), ((0.0, 0.75), False), ((-1.0078125, 2.59375), True)],
)
def test_round_numbers_tell_no_format(extremes: tuple[float, float], is_short: bool) -> None:
    baseline = Values(dtype="float32", n=64, min=extremes[0], max=extremes[1])
    candidate = Values(dtype="float32", n=64, min=extremes[0] * 1.0123, max=extremes[1] * 1.0123)

    found = precision_of_one_module(case(row("param", "norm", "weight", baseline, candidate, relative=2.0**-7)))

    assert (found is not None) == is_short


def facts_of(**configuration):
    """A model that holds a rotary embedding with attributes of its own."""
    named = {f"config.{name}": value for name, value in configuration.items() if name != "scaling"}
    rotary = ModuleFacts(path="rotary", kind="Rotary", attributes={"scaling": configuration.get("scaling", 1.0)})
    return Facts(modules=(ModuleFacts(path="", kind="Model", attributes=named), rotary))


@pytest.mark.parametrize(
    ("mine", "other", "wanted"),
    [
        ({"rope_theta": 1e4}, {"rope_theta": 5e5}, ("config.rope_theta of the model is 10000", "likely")),
        ({"rope_theta": 1e4, "eps": 1.0}, {"rope_theta": 5e5, "eps": 2.0}, ("config.rope_theta of", "possible")),
        ({"scaling": 1.0, "eps": 1.0}, {"scaling": 2.0, "eps": 2.0}, ("scaling of rotary is 1 in", "likely")),
        ({"width": 1, "eps": 1.0}, {"width": 2, "eps": 2.0}, None),  # which of the two?
        ({"torch_dtype": "a"}, {"torch_dtype": "b"}, None),
        ({"rope_theta": 1e4}, {"rope_theta": 1e4}, None),
    ],
)
def test_a_setting_that_differs_is_named_if_it_must_be_the_one(mine, other, wanted):
    out = row("forward", "rotary", "out[0]", Values(n=4, sumsq=4.0), Values(n=4, sumsq=5.0))

    found = setting(case(out, facts=(facts_of(**mine), facts_of(**other))))

    assert (found is None) == (wanted is None)
    if found is not None:
        assert found.text.startswith(wanted[0])
        assert found.confidence == wanted[1]


def test_a_setting_is_asked_for_only_when_no_other_fit_explains_it(monkeypatch):
    out = row("forward", "rotary", "out[0]", Values(n=4, sumsq=4.0), Values(n=4, sumsq=5.0))
    asked = case(out, facts=(facts_of(rope_theta=1e4), facts_of(rope_theta=5e5)))
    knows = Fit(name="knows", cause="config-mismatch", explained=0.95, confidence="likely", text="what it does")

    alone = accepted(asked)
    others = {"setting": fits()["setting"], "knows": Hypothesis(name="knows", look=lambda case: knows)}
    monkeypatch.setattr("hypocenter.compare.fitting.fits", lambda plugins=(): others)

    assert [one.name for one in alone] == ["setting"]
    assert accepted(asked) == [knows]
