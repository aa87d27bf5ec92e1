from __future__ import annotations

from pathlib import Path

from hypocenter.align.engine import How, align
from hypocenter.align.plan import plan_of

CONFIGS = Path(__file__).parent / "programs" / "configs"


def _aligned(tmp_path: Path, baseline: str, candidate: str):
    sides = {
        side: {"config": [str(CONFIGS / name)]} for side, name in (("baseline", baseline), ("candidate", candidate))
    }
    return align(plan_of(sides, tmp_path / "plan.toml"), How(stages=[0]))


def test_configurations_of_two_frameworks_stop_it_where_an_item_changes_the_numbers(tmp_path: Path) -> None:
    found = _aligned(tmp_path, "reference.sh", "ported.yaml")

    assert (found.status, found.stage) == ("stopped", 0)
    assert found.stages[0].site == "precision.embedding_dtype"
    assert "type of the embedding is bfloat16 against float32" in found.sentence
    assert found.stages[0].cause == "config-mismatch"


def test_one_configuration_on_both_sides_passes(tmp_path: Path) -> None:
    found = _aligned(tmp_path, "gpt.json", "gpt.json")

    assert found.stages[0].verdict == "passed"
    assert found.status == "cannot-tell"  # nothing was run


def test_without_configurations_the_stage_is_skipped_and_says_how_to_name_them(tmp_path: Path) -> None:
    sides = {"baseline": {"command": "python a.py"}, "candidate": {"command": "python b.py"}}

    found = align(plan_of(sides, tmp_path / "plan.toml"), How(stages=[0]))

    assert found.stages[0].verdict == "skipped"
    assert "[baseline] config" in found.stages[0].next[0]
