from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.compare import depths, msprobe, peers


def test_reads_the_first_row_that_does_not_pass(tmp_path):
    table = tmp_path / "compare_result.csv"
    rows = ["NPU Name,Result,Err_message", "a,pass,[]", 'b,warning,"off,\nby much"', "c,error,[]", "d,pass,[]"]
    table.write_text("\ufeff" + "\n".join(rows) + "\n", encoding="utf-8")

    found = msprobe._read(table, 3)

    assert (found.step, found.n_rows, found.first, found.message) == (3, 4, "b", "off, by much")
    assert found.results == {"pass": 2, "warning": 1, "error": 1}


def test_says_that_a_dump_is_missing(tmp_path):
    (tmp_path / "good" / "step0").mkdir(parents=True)

    with pytest.raises(msprobe.MsprobeFailed, match="no dump"):
        msprobe.compare(sys.executable, tmp_path / "good", tmp_path / "other")


def test_the_table_of_depths_says_what_was_counted():
    found = {
        "n_pairs": 40, "n_same_status": 39, "n_same_place": 38, "n_rows": 1000, "n_rows_agree": 990,
        "n_diverged": 30, "sketch_bytes": 2**19, "value_bytes": 2**24, "sketch_seconds": 0.5,
        "value_seconds": 1.5, "disagree": ["x: same by sketches"], "other_place": [],
    }  # fmt: skip

    text = "\n".join(depths.in_words(found))

    assert "in 39 (97.5 %)" in text
    assert "990 of 1,000 (99.0 %)" in text
    assert "| 0.50 MiB | ×1.0 |" in text
    assert "| 16.00 MiB | ×3.0 |" in text
    assert "x: same by sketches" in text


@pytest.mark.night
def test_our_side_of_the_page_needs_no_msprobe(tmp_path, capsys):
    small = ["--width", "16", "--steps", "1", "--tool", "hypocenter-sketch", "--tool", "msprobe-L0", "--bug", "eps"]

    assert peers.main([*small, "--folder", str(tmp_path)]) == 0

    page = capsys.readouterr().out
    assert "diverged at step 0, forward: blocks.2.ln2" in page
    assert "eps of blocks.2.ln2 is 1e-05 in the baseline and 0.001 in the candidate" in page
    assert "not installed (--msprobe-python)" in page
