"""What fits say is taken only when it explains the difference; a fit that fails is listed, never fatal."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypocenter.compare import fitting
from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Comparison, Divergence, Fit
from hypocenter.nouns import Run

CASE = Case(
    comparison=Comparison(),
    first=Divergence(
        step=0, microbatch=0, phase="forward", site="a", port="out[0]", candidate_site="a", error=1.0, floor=0.1
    ),
    runs=(Run(format=1, name="a"), Run(format=1, name="b")),
)

PLUGIN = """
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fitting import fit

def said(name, explained, confidence, cause="config-mismatch"):
    return Fit(name=name, cause=cause, explained=explained, confidence=confidence, text=name)

@fit("x-weak")
def weak(case):
    return said("x-weak", 0.9, "proven")

@fit("x-good")
def good(case):
    return said("x-good", 0.95, "likely")

@fit("x-better")
def better(case):
    return said("x-better", 0.99, "likely")

@fit("x-raises")
def raises(case):
    raise ZeroDivisionError("planted")

@fit("x-invents")
def invents(case):
    return said("x-invents", 1.0, "proven", cause="gremlins")
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    fresh = type(fitting.CATALOGUE)(fitting.CATALOGUE.package, fitting.CATALOGUE.group)
    fresh._loaded.add(fresh.package)
    monkeypatch.setattr(fitting, "CATALOGUE", fresh)
    path = tmp_path / "fits_of_a_stranger.py"
    path.write_text(PLUGIN)
    return str(path)


def test_the_best_that_explains_enough_comes_first(plugin):
    found = fitting.accepted(CASE, [plugin])

    assert [fit.name for fit in found] == ["x-better", "x-good"]


def test_a_fit_that_fails_or_invents_a_cause_is_listed(plugin):
    fitting.accepted(CASE, [plugin])

    errors = {broken.name: broken.error for broken in fitting.CATALOGUE.broken}
    assert "ZeroDivisionError: planted" in errors["x-raises"]
    assert "gremlins" in errors["x-invents"]


def test_the_fits_that_come_along_all_load_and_bear_an_empty_case():
    assert {"scale-factor", "precision-of-one-module"} <= set(fitting.fits())
    assert all(isinstance(entry.look(CASE), (Fit, type(None))) for entry in fitting.fits().values())
    assert fitting.CATALOGUE.broken == []
