"""End to end: one Llama as a script of Megatron-LM and as a YAML of MindFormers, and what is planted into it."""

from __future__ import annotations

from pathlib import Path

import pytest
from llama_pair import PLANTED, REMARKED, write_pair
from made_sides import row

from hypocenter.checklist.checklist import Checklist
from hypocenter.checklist.compare import compare
from hypocenter.checklist.reading import read


def checked(folder: Path, *planted: tuple[str, str]) -> Checklist:
    script, yaml = write_pair(folder, *planted)
    return compare(read([script]), read([yaml]))


def differing(found: Checklist) -> set[str]:
    """Items that differ, without those of little weight."""
    return {row.item for row in found.rows if row.verdict == "different" and row.severity != "note"}


def test_the_pair_is_the_same(tmp_path: Path) -> None:
    found = checked(tmp_path)

    assert differing(found) == set()
    assert found.status == "same"
    compared = [row for row in found.rows if row.verdict in ("same", "equivalent")]
    assert len(compared) > 60
    assert row(found, "optimizer.type").verdict == "equivalent"
    assert "AdamW" in row(found, "optimizer.type").why
    assert row(found, "batch.global_batch_size").verdict == "equivalent"
    assert row(found, "optimizer.warmup_steps").verdict == "same"


@pytest.mark.parametrize(("items", "old", "new"), PLANTED, ids=[" ".join(sorted(case[0])) for case in PLANTED])
def test_exactly_what_was_planted_differs(tmp_path: Path, items: frozenset[str], old: str, new: str) -> None:
    found = checked(tmp_path, (old, new))

    assert differing(found) == items
    assert found.status == "different"
    assert all(row(found, item).why and row(found, item).fix for item in items)


@pytest.mark.parametrize(("item", "old", "new"), REMARKED)
def test_what_the_candidate_alone_does_is_remarked(tmp_path: Path, item: str, old: str, new: str) -> None:
    plain, found = checked(tmp_path), checked(tmp_path, (old, new))

    assert row(plain, item).remarks == ()
    assert [remark.side for remark in row(found, item).remarks if remark.severity != "note"] == ["candidate"]


def test_several_at_once_are_all_told_with_their_lines(tmp_path: Path) -> None:
    changes = {0, 1, 3, 4}

    found = checked(tmp_path, *((PLANTED[i][1], PLANTED[i][2]) for i in changes))

    assert differing(found) == {item for i in changes for item in PLANTED[i][0]}
    where = {item.candidate_setting.where for item in found.rows[: len(changes)] if item.candidate_setting}
    assert all(place.startswith("pretrain_llama2_7b.yaml:") for place in where)
