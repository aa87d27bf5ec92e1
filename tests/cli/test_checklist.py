"""`hypocenter checklist` as a person uses it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from commanded import side
from recordings import run

from hypocenter.cli.commands.checklist import paths_of
from hypocenter.json_answer import published
from hypocenter.report.checklist.json import Compared


def test_two_equal_sides_are_the_same(tmp_path: Path) -> None:
    said = run("checklist", side(tmp_path / "a"), side(tmp_path / "b"))

    assert said.code == 0, said.err
    assert said.out.startswith("same in all ")
    assert said.err == "next: hypocenter align new > plan.toml  # the next stages\n"


def test_a_difference_is_named_with_both_places_and_exit_code_1(tmp_path: Path) -> None:
    one = side(tmp_path / "a")
    other = side(tmp_path / "b", model={"rms_norm_eps": 1e-5}, training={"adam_beta2": 0.999})

    said = run("checklist", one, other)

    assert said.code == 1, said.err
    assert said.out.startswith("different in 2 of ")
    assert "config.json:10  rms_norm_eps: 1e-06" in said.out
    assert "config.json:10  rms_norm_eps: 1e-05" in said.out
    assert "args.json:3  adam_beta2: 0.999" in said.out
    assert said.err == "next: hypocenter explain model.norm_eps\n"


def test_files_of_a_side_are_joined_or_given_one_by_one(tmp_path: Path) -> None:
    joined = side(tmp_path / "a")
    config, args = joined.split(",")

    together = run("checklist", joined, joined, "--json")
    apart = run("checklist", config, config, "--baseline", args, "--candidate", args, "--json")
    plus = run("checklist", f"{config}+{args}", joined, "--json")

    assert json.loads(together.out)["rows"] == json.loads(apart.out)["rows"] == json.loads(plus.out)["rows"]


def test_a_path_that_is_there_is_never_cut(tmp_path: Path) -> None:
    odd = tmp_path / "a,b+c.json"
    odd.write_text("{}", encoding="utf-8")

    assert paths_of(str(odd)) == [odd]
    assert paths_of(f"{odd},{tmp_path}/x+{tmp_path}/y") != [odd]


def test_nothing_in_common_is_cannot_tell_and_exit_code_5(tmp_path: Path) -> None:
    config, args = side(tmp_path / "a").split(",")

    said = run("checklist", config, args)

    assert said.code == 5
    assert said.out.startswith("cannot tell: only ")
    assert said.err.startswith("next: give more files of the sides")


def test_a_file_that_is_none_is_one_error(tmp_path: Path) -> None:
    one = side(tmp_path / "a")
    (tmp_path / "empty").write_text("", encoding="utf-8")

    for wrong in (tmp_path / "nowhere.json", tmp_path / "empty"):
        said = run("checklist", one, wrong)
        assert said.code == 4
        assert said.err.startswith("error[bad-configuration]: ")
        assert said.out == ""
    assert run("checklist", one, "").code == 2


def test_json_validates_and_formats_exclude_nothing(tmp_path: Path) -> None:
    one, other = side(tmp_path / "a"), side(tmp_path / "b", model={"rope_theta": 500000.0, "odd_key": 7})

    said = run("checklist", one, other, "--json")
    answer = json.loads(said.out)

    jsonschema.validate(answer, published(Compared))
    assert (said.code, answer["status"]) == (1, "different")
    assert answer["rows"][0]["item"] == "model.rope_theta"
    assert [key["spelled"] for key in answer["unknown"]["candidate"]] == ["odd_key: 7"]
    assert run("checklist", one, other, "--format", "json").out == said.out
    assert run("checklist", one, other, "--format", "markdown").out.startswith("**different in 1 of ")


def test_items_of_ones_own_are_compared_and_a_bad_file_of_them_is_refused(tmp_path: Path) -> None:
    one, other = side(tmp_path / "a", model={"odd_key": 6}), side(tmp_path / "b", model={"odd_key": 7})
    own = tmp_path / "own.toml"
    item = (
        '[[item]]\nkey = "acme.odd"\ntitle = "the odd key"\nkind = "count"\nimportance = "error"\nwhy = "it is odd"\n'
    )
    own.write_text(
        f'group = "acme"\ntitle = "our own"\n{item}manual = "Ours."\nnames = ["odd_key"]\n', encoding="utf-8"
    )

    without = run("checklist", one, other)
    found = run("checklist", one, other, "--items", own)
    own.write_text("[[item]]", encoding="utf-8")
    refused = run("checklist", one, other, "--items", own)

    assert without.code == 0
    assert found.code == 1
    assert "our own" in found.out
    assert "✗ the odd key" in found.out
    assert refused.code == 2
    assert refused.err.startswith("error[bad-option]: the items are not as they should be\n")


@pytest.mark.parametrize("all_rows", [False, True])
def test_all_shows_what_is_the_same(tmp_path: Path, all_rows: bool) -> None:
    one = side(tmp_path / "a")

    said = run("checklist", one, one, *(["--all"] if all_rows else []))

    assert ("= transformer layers" in said.out) == all_rows
