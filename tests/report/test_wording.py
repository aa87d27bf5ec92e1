"""The shared sentences."""

from __future__ import annotations

import math
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_fakes import NASTY, OVERFLOW

from hypocenter.nouns import Coords, Finding, Remedy, Summary, replace
from hypocenter.report import wording


@given(st.text(max_size=300))
def test_clean_text_is_one_visible_line(text: str) -> None:
    cleaned = wording.clean(text)

    assert cleaned.isprintable() or not any(ord(c) < 0x20 or ord(c) == 0x7F for c in cleaned)
    assert "\u202e" not in cleaned
    assert len(cleaned.splitlines()) <= 1


def test_long_name_says_how_much_is_cut() -> None:
    cut = wording.clean("a" * 5_000 + "z" * 5_000)

    assert cut.startswith("aaa")
    assert cut.endswith("zzz")
    assert "(9,800 characters)" in cut


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        (Summary(n=4, n_hist=4), ()),
        (
            Summary(n=20_000, n_hist=20_000, n_nan=4096, n_posinf=12, n_zero=9120),
            ("NaN ×4,096", "+inf ×12", "0 ×9,120"),
        ),
        (Summary(n=20_000, n_hist=1000, n_zero=250, n_neginf=1), ("-inf ×1", "0 ≈25 %")),
        (Summary(n=64, n_nan=1), ("NaN",)),  # a norm that is NaN: nobody counted
        (Summary(n=1, n_nan=1), ("NaN ×1",)),
        (Summary(n=64, n_nan=3, absmax=2.0), ("NaN ×3",)),  # imported, without a histogram
    ],
)
def test_chips_count_exactly_or_say_that_they_do_not(summary: Summary, expected: tuple[str, ...]) -> None:
    assert wording.chips(summary) == expected


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        (Summary(n=64, n_hist=64, n_zero=64, min=0.0, max=0.0), "0"),
        (Summary(n=64, n_hist=64, n_nan=31, n_zero=33), "0"),
        (Summary(n=64, sumsq=4.0), "norm 2"),
        (Summary(n=64), "norm 0"),
        (Summary(n=64, n_nan=1), "not recorded"),
        (Summary(n=128, n_nan=1, sumsq=4.0), "norm 2"),  # of two steps
        (Summary(n=64, n_hist=64, n_nan=64), "-"),
    ],
)
def test_magnitude_is_a_number_only_where_something_was_measured(summary: Summary, expected: str) -> None:
    assert wording.magnitude(summary) == expected


@given(st.floats(min_value=1e-30, max_value=65504))
def test_headroom_is_the_number_of_doublings_left(absmax: float) -> None:
    bits = wording.headroom_bits(absmax, "float16")

    assert bits is not None
    assert absmax * 2**bits == pytest.approx(65504.0, rel=1e-9)


def test_headroom_is_unknown_without_a_limit_and_none_when_not_finite() -> None:
    assert wording.headroom_bits(1.0, "int64") is None
    assert wording.headroom(Summary(n=1, n_hist=1, absmax=1.0), "int64") == ""
    assert wording.headroom(Summary(n=2, n_hist=2, n_nan=1, absmax=1.0), "float16") == "none"


def test_where_names_rank_and_layout_only_in_a_job_of_several() -> None:
    alone = replace(OVERFLOW, rank=0, coords=Coords())

    assert wording.where(OVERFLOW, 8) == (
        "step 12, micro-batch 0, rank 3 of 8 (tp 1, dp 0), encoder.block.1.layer.1.DenseReluDense out[0] (forward)"
    )
    assert wording.where(alone, 1) == "step 12, micro-batch 0, encoder.block.1.layer.1.DenseReluDense out[0] (forward)"


@pytest.mark.parametrize(("bundle", "expected"), [(None, "c (proven)"), ("b", "c (proven by replay)")])
def test_cause_says_replay_only_when_there_was_one(bundle: str | None, expected: str) -> None:
    finding = Finding(
        code="HC1", kind="nonfinite", severity="error", title="t", step=0, cause="c", confidence="proven", bundle=bundle
    )

    assert wording.cause(finding) == expected


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        (Remedy(action="eps", text="raise eps", verified=True), "raise eps (verified by replay)"),
        (Remedy(action="eps", text="raise eps"), "raise eps (not verified)"),
        (Remedy(action="fp32-island", targets=("a", "b")), "fp32-island a, b (not verified)"),
    ],
)
def test_remedy_always_says_whether_it_was_verified(remedy: Remedy, expected: str) -> None:
    assert wording.remedy(remedy) == expected


@pytest.mark.parametrize("name", ["a.b", "a b", "it's", "$(rm -rf)", "a[0]", NASTY, "q" * 999])
def test_command_is_one_word_per_argument_and_typeable(name: str) -> None:
    typed = wording.command("show", "runs/x", "--site", wording.site_glob(name))

    words = shlex.split(typed)
    assert words[:4] == ["hypocenter", "show", "runs/x", "--site"]
    assert len(words) == 5
    assert len(words[4]) <= 201


@pytest.mark.parametrize("name", ["a.b", "a[0].b*c?", NASTY, "q" * 999])
def test_glob_of_a_site_finds_that_site(name: str) -> None:
    import fnmatch

    assert fnmatch.fnmatchcase(name, wording.site_glob(name))


@pytest.mark.parametrize(("n", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**30, "3.0 GiB")])
def test_byte_size(n: int, text: str) -> None:
    assert wording.byte_size(n) == text


def test_numbers_that_are_not_finite_have_names() -> None:
    assert [wording.number(x) for x in (None, math.nan, math.inf, 65504.0)] == ["unknown", "NaN", "+inf", "65504"]


@pytest.mark.parametrize(
    ("limit", "actual", "expected"),
    [
        (65504.0, 1.1e5, "65504, actual 1.1e5"),
        (None, None, ""),
        (0.0, 0.0, ""),
        (1.00001, 1.00002, ""),
        (None, 3.0, ""),
        (0.0, -3.0, "0, actual -3"),
    ],
)
def test_limit_is_told_where_something_is_beyond_it(limit: float | None, actual: float | None, expected: str) -> None:
    finding = Finding(code="HC101", kind="nonfinite", severity="error", title="t", step=1, limit=limit, actual=actual)

    assert wording.limit(finding) == expected


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("layers.0.norm", "layers.0.norm"),
        ("encoder.block.11.layer.1.DenseReluDense.wo out[0]", "encoder…uDense.wo out[0]"),
        ("名" * 20, "名名名…" + "名" * 8),  # two columns each
    ],
)
def test_a_name_is_cut_in_its_middle(name: str, shown: str) -> None:
    assert wording.shortened(name, 24) == shown
