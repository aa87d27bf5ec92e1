"""`hypocenter list`."""

from __future__ import annotations

import json
from importlib import metadata

import pytest
from recordings import run

from hypocenter.catalogue import Catalogue
from hypocenter.report import catalogue


def test_every_shelf_is_listed() -> None:
    said = run("list")

    heads = [line.partition(" (")[0] for line in said.out.splitlines() if line and not line.startswith(" ")]
    assert heads == [
        "rules",
        "causes",
        "fits",
        "matchers",
        "items",
        "checks",
        "settings",
        "measures",
        "twins",
        "formats",
        "importers",
        "exporters",
        "sinks",
        "options",
    ]
    assert "  HC101 " in said.out
    assert "  format-overflow " in said.out
    assert "  norm-eps " in said.out
    assert "  terminal " in said.out
    assert said.err == "next: hypocenter explain HC101\n"


def test_plugin_that_fails_is_listed_with_its_error_and_hurts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = metadata.EntryPoint(name="acme", value="no_such_module_of_acme", group="hypocenter.formats")
    real = metadata.entry_points
    monkeypatch.setattr(
        metadata, "entry_points", lambda group: [broken] if group == "hypocenter.formats" else real(group=group)
    )
    fresh = Catalogue("hypocenter.report.formats", "hypocenter.formats", catalogue._described)
    monkeypatch.setattr(catalogue, "FORMATS", fresh)  # the usual one has been read already

    said = run("list")

    assert said.code == 0
    assert "acme did not load: ModuleNotFoundError: No module named 'no_such_module_of_acme'" in said.out


def test_json() -> None:
    shelves = {shelf["kind"]: shelf["entries"] for shelf in json.loads(run("list", "--json").out)["shelves"]}

    assert {"html", "json", "markdown", "terminal"} <= set(shelves["formats"])
    assert shelves["options"]["frames"] == "default 21"
