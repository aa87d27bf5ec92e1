"""The items' files: whole pages, names that exist, and one clear error for a bad file."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypocenter.checklist import tables
from hypocenter.checklist.items.item import GROUPS, WIDTH, load, page, pages, parse
from hypocenter.errors import ConfigError

ITEMS = load()
GOOD = """\
[[item]]
key = "acme.noise"
title = "noise"
kind = "number"
importance = "error"
why = "other experts are chosen"
manual = "Ours."
"""


def test_groups_stand_in_the_order_of_the_seeds() -> None:
    assert tuple(ITEMS.groups) == GROUPS
    assert all(ITEMS.groups[group] for group in GROUPS)


@pytest.mark.parametrize("key", sorted(ITEMS.by_key))
def test_item_is_whole(key: str) -> None:
    item = ITEMS.by_key[key]
    found = page(item)

    assert key == key.lower()
    assert "." in key
    assert found.missing == ()
    assert found.message == item.title
    assert not item.why.endswith(".")
    assert item.why[0].islower() or item.why.split()[0][:2].isupper() or item.why.startswith(("MindSpore", "RMSNorm"))
    long = [line for _, text in found.sections for line in text.splitlines() if len(line) > WIDTH]
    assert [line for line in long if " " in line.strip()] == []


@pytest.mark.parametrize("key", sorted(ITEMS.by_key))
def test_other_items_that_an_item_names_exist(key: str) -> None:
    item = ITEMS.by_key[key]
    sides = [side for rule in item.equivalent for side in (rule.one, rule.other)] + [a.side for a in item.advice]

    named = {other for side in sides for other in (*side.other, *filter(None, [side.not_below]))}

    assert named <= set(ITEMS.by_key)


def test_pages_are_in_the_order_of_the_groups() -> None:
    found = list(pages(ITEMS))

    assert found == list(ITEMS.by_key)
    assert found[0] == "model.architecture"


def test_a_page_says_how_frameworks_call_the_item() -> None:
    decided = dict(page(ITEMS.by_key["model.norm_eps"]).sections)["How it is decided"]

    assert "Megatron-LM" in decided


def test_an_item_of_ones_own_takes_the_place_of_ours(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('group = "optimizer"\n' + GOOD.replace("acme.noise", "optimizer.eps"), encoding="utf-8")

    found = load([tmp_path])

    assert found.by_key["optimizer.eps"].title == "noise"
    assert found.groups["optimizer"] == ITEMS.groups["optimizer"]
    assert len(found.by_key) == len(ITEMS.by_key)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("group = ", "Invalid value"),
        ("[[item]]", "missing required field `key` - at `$.item[0]`"),
        (GOOD, "missing required field `group`"),
        ('group = "a"\n[[item]]\nkey = "x.y"', "missing required field `title`"),
        ('group = "a"\n' + GOOD + "wy = 3\n", "unknown field `wy`"),
        ('group = "a"\n' + GOOD.replace('"number"', '"nombre"'), "Invalid enum value 'nombre'"),
        ('group = "a"\n' + GOOD.replace('"error"', '"bad"'), "Invalid enum value 'bad'"),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, text: str, why: str) -> None:
    own = tmp_path / "own.toml"
    own.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError) as raised:
        load([own])

    assert raised.value.where == str(own)
    assert why in raised.value.why
    assert raised.value.exit_code == 2


def test_a_file_that_is_not_there_or_no_text_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").mkdir()

    for path in (tmp_path / "none.toml", tmp_path / "binary.toml", tmp_path / "empty"):
        with pytest.raises(ConfigError) as raised:
            load([path])
        assert raised.value.where == str(path)


def test_every_item_that_a_table_of_names_knows_is_described() -> None:
    named = {
        told.lstrip("!")
        for name in tables.names()
        for told in (*tables.table(name).names.values(), *tables.table(name).defaults)
    }

    assert named - {""} <= set(ITEMS.by_key)


def test_titles_are_short_enough_for_a_column_and_name_one_item_each() -> None:
    titles = [item.title for item in ITEMS.by_key.values()]

    assert [title for title in titles if len(title) > 40] == []
    assert len(set(titles)) == len(titles)


def test_the_example_of_the_page_is_a_file_of_items() -> None:
    page_text = (Path(__file__).parents[2] / "docs" / "checklist.md").read_text(encoding="utf-8")
    example = page_text.partition("```toml\n")[2].partition("```")[0]

    found = parse(example, "docs/checklist.md")

    assert [item.key for item in found.item] == ["acme.router_noise"]
    assert found.item[0].advice[0].side.above == 0.0
