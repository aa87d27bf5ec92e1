"""importing.entries: the same as json.load, entry by entry, of whole, cut and damaged files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.importing import entries as module
from hypocenter.importing.entries import entries, last_of

names = st.text(max_size=12)
leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | names
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)
objects = st.dictionaries(names.filter(lambda name: name != "data"), values, max_size=6)


def read(text: str, tmp_path: Path, inside: str = "data") -> tuple[list[tuple[str, Any]], list[str]]:
    path = tmp_path / "dump.json"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    said: list[str] = []
    return list(entries(path, inside, said.append)), said


def same(a: Any, b: Any) -> bool:
    return json.dumps(a) == json.dumps(b)


@settings(max_examples=150, deadline=None)
@given(data=objects, beside=objects, indent=st.none() | st.integers(0, 2), piece=st.integers(1, 40))
def test_what_is_read_is_what_was_written(
    data: dict[str, Any],
    beside: dict[str, Any],
    indent: int | None,
    piece: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    before, module.PIECE = module.PIECE, piece
    try:
        found, said = read(json.dumps({**beside, "data": data}, indent=indent), tmp_path_factory.mktemp("d"))
    finally:
        module.PIECE = before

    assert not said
    assert found[0][0] == ""
    assert same(found[0][1], beside)
    assert same(dict(found[1:]), data)
    assert [name for name, _ in found[1:]] == list(data)


@settings(max_examples=100, deadline=None)
@given(data=objects.filter(bool), cut=st.floats(0, 1, exclude_max=True))
def test_a_file_that_is_cut_gives_its_whole_entries_and_says_so(
    data: dict[str, Any], cut: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = json.dumps({"task": "statistics", "data": data}, indent=1)

    found, said = read(text[: int(cut * (len(text) - 5))], tmp_path_factory.mktemp("d"))

    assert len(said) == 1
    kept = dict(found[1:])
    assert same(kept, {name: data[name] for name in list(data)[: len(kept)]})


def test_bare_nan_and_infinity_are_numbers(tmp_path: Path) -> None:
    found, said = read('{"data": {"a": {"Max": NaN, "Min": -Infinity, "Mean": Infinity, "s": "NaN"}}}', tmp_path)

    leaf = dict(found)["a"]
    assert math.isnan(leaf["Max"])
    assert (leaf["Min"], leaf["Mean"], leaf["s"], said) == (-math.inf, math.inf, "NaN", [])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "cut off"), ("[1]", "no {"), ('{"data": [1]}', "no {"), ('{"data": {"a": 1, b}}', "no key"),
        ('{"data": {"a" 1}}', "no :"), ('{"data": {"a": 1 "b": 2}}', "no comma"),
        ('{"data": {"a": ' + "[" * 200_000, "deep"), ('{"data": {"a": ' + '{"a":' * 200_000, "deep"),
        ('{"data": {"a": 1' + "0" * 5000 + "}}", "damaged"),
    ],
)  # fmt: skip
def test_what_is_no_json_is_one_line(text: str, word: str, tmp_path: Path) -> None:
    found, said = read(text, tmp_path)

    assert len(said) == 1
    assert word in said[0]
    assert len(found) <= 2


def test_an_entry_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_MOST", 10_000)

    found, said = read('{"data": {"a": 1, "b": "' + "x" * 3_000_000, tmp_path)

    assert dict(found)["a"] == 1
    assert "larger than" in said[0]


@given(keys=st.lists(st.text("ab.", max_size=6), max_size=20), piece=st.integers(1, 40))
def test_the_last_name_with_an_ending_is_found_from_the_end(
    keys: list[str], piece: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "last.json"
    path.write_text(json.dumps([[f"{key}.backward" if n % 3 else key, n] for n, key in enumerate(keys)]))
    wanted = [f"{key}.backward" for n, key in enumerate(keys) if n % 3]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", piece)
        found = last_of(path, ".backward")

    assert found == (wanted[-1] if wanted else "")


@pytest.mark.parametrize("content", [b"", b'.backward"', b'"' + b"x" * 5000 + b'.backward"', b'\xff".backward'])
def test_what_is_no_name_is_not_found(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)

    assert last_of(tmp_path / "x", ".backward") == ""


@given(value=values, other=st.text(st.characters(categories=["Cs", "Ll"]), max_size=4))
def test_text_that_no_file_can_hold_becomes_a_question_mark(
    value: Any, other: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tree = {"b": [value, {other: other}], other + "x": value, "c": value}
    path = tmp_path_factory.getbasetemp() / "surrogates.json"
    path.write_text(json.dumps({"data": tree}))

    found = dict(list(entries(path, "data", str))[1:])

    told = json.dumps(found, ensure_ascii=False).encode()  # raises where a surrogate is left
    assert list(found)[-1] == "c"
    if other.isascii() or not any("\ud800" <= mark <= "\udfff" for mark in other):
        assert same(found, tree)
    else:
        assert b"?" in told
