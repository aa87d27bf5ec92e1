"""Pages of an answer: each is small, and together they are the whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.cli.agents.tools import Cut, page
from hypocenter.errors import ConfigError

MOST = 400
LEAVES = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=900)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=12), inner, max_size=50),
    max_leaves=60,
)


def whole(value: Any, at: str = "", start: int = 0) -> Any:
    """What a client has that asks for everything that was cut."""
    found = page(value, at=at, start=start, most=MOST)
    return _mended(value, found.value, at, {cut.at: cut for cut in found.cut}, start)


def _mended(value: Any, shown: Any, at: str, cuts: dict[str, Cut], first: int) -> Any:
    if isinstance(shown, list):
        shown = [_mended(value, item, f"{at}/{first + i}", cuts, 0) for i, item in enumerate(shown)]
    elif isinstance(shown, dict):
        pointer = {key: f"{at}/{key.replace('~', '~0').replace('/', '~1')}" for key in shown}
        shown = {key: _mended(value, item, pointer[key], cuts, 0) for key, item in shown.items()}
    if at not in cuts:
        return shown
    rest = whole(value, at, cuts[at].start)
    return {**shown, **rest} if isinstance(shown, dict) else shown + rest


@settings(max_examples=25)
@given(VALUES)
def test_pages_are_small_and_make_up_the_whole(value: Any) -> None:
    found = page(value, most=MOST)

    assert len(json.dumps(found.value, ensure_ascii=False)) <= 3 * MOST
    assert whole(value) == value


def test_a_small_answer_is_whole_and_a_large_one_says_where_its_rest_begins() -> None:
    rows = [{"site": f"layers.{i}.mlp", "absmax": i} for i in range(1000)]

    small = page({"status": "found", "rows": rows[:3]})
    large = page({"status": "found", "rows": rows})
    (cut,) = large.cut
    rest = page({"status": "found", "rows": rows}, at="/rows", start=cut.start)

    assert (small.cut, small.value["rows"]) == ([], rows[:3])
    assert large.value["status"] == "found"
    assert (cut.at, cut.of, cut.start) == ("/rows", 1000, len(large.value["rows"]))
    assert rest.value[0] == rows[cut.start]


@pytest.mark.parametrize(("at", "start"), [("/nothing", 0), ("rows", 0), ("/rows/9", 0), ("/rows", 3), ("/rows", -1)])
def test_what_is_not_there_is_an_error(at: str, start: int) -> None:
    with pytest.raises(ConfigError):
        page({"rows": [1, 2, 3]}, at=at, start=start)
