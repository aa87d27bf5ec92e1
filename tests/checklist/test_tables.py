"""The names tables: every item exists, every default is in its item's words, every framework has its rules."""

from __future__ import annotations

import pytest

from hypocenter.checklist.catalogue import READERS
from hypocenter.checklist.file_entries import FRAMEWORKS
from hypocenter.checklist.items.item import load
from hypocenter.checklist.tables import names, read_toml, table
from hypocenter.checklist.words import canonical

KNOWN = set(load().by_key)


@pytest.mark.parametrize("name", names())
def test_every_item_of_a_table_exists(name: str) -> None:
    found = table(name)

    items = {found.item_of(key)[0] for key in found.names} | set(found.defaults)

    assert items - KNOWN == set()


@pytest.mark.parametrize("name", names())
def test_a_default_is_in_the_words_of_its_item(name: str) -> None:
    found = table(name)

    for item, value in found.defaults.items():
        assert canonical(item, value) == value, item
    assert found.defaults_of or not found.defaults


@pytest.mark.parametrize("name", names())
def test_flags_stand_for_keys_that_are_known_or_left_unknown_on_purpose(name: str) -> None:
    found = table(name)

    for flag, (key, _) in found.flags.items():
        assert flag not in found.names, flag
        assert key != flag or key in found.switches.keys, flag


@pytest.mark.parametrize("name", ["hf_models", "mindformers_models", "torchtitan_models"])
def test_every_fact_of_a_model_is_of_an_item(name: str) -> None:
    for kind, model in read_toml(name).items():
        assert set(model.get("facts", {})) - KNOWN == set(), kind


def test_no_reader_and_no_rules_are_broken() -> None:
    READERS.load()
    FRAMEWORKS.load()

    assert READERS.broken == []
    assert FRAMEWORKS.broken == []
    assert set(FRAMEWORKS.entries()) <= set(names())
    assert len(READERS.entries()) >= 10
