"""align.repeats: when a baseline without determinism is a measure of noise, and when its weights have to be nudged."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypocenter.align import repeats as module
from hypocenter.align.plan import plan_of


class Recorded:
    """A context whose recordings are their own purposes."""

    def __init__(self, folder: Path) -> None:
        sides = {"baseline": {"command": "python a.py"}, "candidate": {"command": "python b.py"}}
        self.plan = plan_of(sides, folder / "plan.toml")
        self.asked: list[str] = []

    def run(self, side: str, purpose: str) -> str:
        self.asked.append(purpose)
        return purpose

    def path(self, side: str, purpose: str, *, start_from: str = "") -> Path:
        return Path(f"{purpose}{' from ' + start_from if start_from else ''}")


@pytest.mark.parametrize(
    ("unequal", "is_nudged"),
    [
        ((), True),  # a CPU: without determinism too it repeats itself to the bit
        ((("steps", "loose"),), True),  # only the deterministic way is another one
        ((("steps", "loose"), ("loose", "loose-2")), False),  # another each time
    ],
)
def test_repeats_are_nudged_where_the_machine_repeats_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unequal: tuple[tuple[str, str], ...], is_nudged: bool
) -> None:
    monkeypatch.setattr(
        module, "first_unequal", lambda once, again: (once, again) if (once, again) in unequal else None
    )
    monkeypatch.setattr(module, "coarsest_format", lambda run: "float32")
    monkeypatch.setattr(module, "nudged_weights", lambda context, size, number: Path(f"nudged-{number}"))
    monkeypatch.setattr(module, "read_curve", lambda path: path)

    found = module.repeats(Recorded(tmp_path), "repeat", 2)  # type: ignore[arg-type]

    plain = (Path("repeat-1"), Path("repeat-2"))
    nudged = (Path("repeat-1 from nudged-1"), Path("repeat-2 from nudged-2"))
    assert found.paths == (nudged if is_nudged else plain)
    assert ("rounding to float32" in found.how) == is_nudged
