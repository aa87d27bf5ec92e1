"""`hypocenter diff` as a person uses it."""

from __future__ import annotations

import html
import json
from pathlib import Path

import jsonschema
import pytest
from recordings import record, run

from hypocenter.cli.commands.diff import budget_of
from hypocenter.errors import ConfigError
from hypocenter.json_answer import published
from hypocenter.report.comparison.json import Diff


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs that are the same but for an overflow in the last step of the second."""
    return record(tmp_path / "good", fails=False), record(tmp_path / "bad")


def test_a_difference_is_one_sentence_and_exit_code_1(pair):
    said = run("diff", *pair)

    assert said.code == 1, said.err
    assert said.out.startswith("diverged at step 3, forward: encoder.ff out[0] differs by inf")
    assert "next: hypocenter show" in said.err
    assert "--site encoder.ff --step 3 --values" in said.err


def test_where_no_cause_is_found_the_settings_are_the_next_to_look_at(pair):
    said = run("diff", *pair)
    found = json.loads(run("diff", *pair, "--json").out)

    assert (found["cause"] in (None, "unknown")) == (f"next: hypocenter checklist {pair[0]} {pair[1]}" in said.err)
    assert found["cause"] in (None, "unknown")


def test_a_run_and_itself_are_the_same(pair):
    said = run("diff", pair[0], pair[0])

    assert said.code == 0
    assert said.out.startswith("same: ")


def test_json_is_data_and_nothing_else(pair):
    said = run("diff", *pair, "--json")

    answer = json.loads(said.out)
    jsonschema.validate(answer, published(Diff), cls=jsonschema.Draft202012Validator)
    assert said.code == 1
    assert said.err == ""
    assert answer["first"]["site"] == "encoder.ff"


def test_steps_and_sites_are_chosen(pair):
    before = run("diff", *pair, "--steps", "0-2")
    elsewhere = run("diff", *pair, "--site", "encoder.norm")

    assert (before.code, elsewhere.code) == (0, 0)
    assert "over 3 steps" in before.out


def test_a_site_that_neither_run_has_is_never_the_same(pair):
    said = run("diff", *pair, "--site", "decoder.*")

    assert said.code == 5
    assert said.out.startswith("cannot tell")


def test_annotations_for_a_job(pair):
    said = run("diff", *pair, "--format", "github")

    assert said.code == 1
    assert said.out.startswith("::error title=hypocenter diff::diverged at step 3")


def test_a_map_is_drafted_and_never_overwritten(pair, tmp_path):
    first = run("diff", *pair, "--write-map", tmp_path / "map.toml")
    again = run("diff", *pair, "--write-map", tmp_path / "map.toml")
    used = run("diff", *pair, "--map", tmp_path / "map.toml")

    assert (first.code, again.code, used.code) == (1, 2, 1)
    assert "error[already-exists]" in again.err


@pytest.mark.parametrize("text", ["4", "floor×4", "floor x 4", "floor*4", "×4", " 4.0 "])
def test_a_budget_is_a_number_of_floors(text):
    assert budget_of(text) == 4.0


@pytest.mark.parametrize("text", ["", "floor", "0", "-1", "nan", "1e999", "ceiling×4", "4 floors"])
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(ConfigError):
        budget_of(text)


def test_nothing_to_read_is_exit_code_4(pair, tmp_path):
    said = run("diff", pair[0], tmp_path / "nowhere")

    assert said.code == 4
    assert "error[no-recording]" in said.err


def test_a_page_is_written_once_and_says_how_to_make_it_again(pair, tmp_path):
    page = tmp_path / "out.html"
    said = run("diff", *pair, "--steps", "0-3", "--report", page)
    again = run("diff", *pair, "--report", page)
    forced = run("diff", *pair, "--report", page, "--force")

    assert said.code == 1
    assert f"wrote {page}" in said.err
    text = page.read_text(encoding="utf-8")
    assert "encoder.ff out[0]" in text
    assert again.code == 2
    assert "the report exists already" in again.err
    assert forced.code == 1


def test_a_page_names_its_command(pair, tmp_path):
    page = tmp_path / "out.html"
    run("diff", *pair, "--steps", "0-3", "--noise", pair[0], "--budget", "floor×8", "--report", page)

    wanted = f"hypocenter diff {pair[0]} {pair[1]} --noise {pair[0]} --budget 8 --steps 0-3 --report {page}"
    assert wanted in html.unescape(page.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["junit", "sarif", "html", "markdown", "github"])
def test_formats_for_ci(pair, name):
    said = run("diff", *pair, "--format", name)

    assert said.code == 1
    assert "encoder.ff" in said.out
    assert said.err == ""
