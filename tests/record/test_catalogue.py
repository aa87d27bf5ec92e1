"""record/catalogue.py: sinks are found by name, and a broken one never stops the others."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from hypocenter.errors import ConfigError, UnknownNameError
from hypocenter.nouns import Finding, Reading, StepRecord
from hypocenter.record import catalogue
from hypocenter.record.catalogue import Sinks, SinkStart, load_sinks, sink_names
from hypocenter.record.sinks.memory import Memory

PLUGIN = """
from hypocenter.record.catalogue import sink

@sink("mine")
class Mine:
    def __init__(self, start):
        self.rank, self.steps = start.rank, []
    def write(self, readings, step):
        self.steps.append(step.step)
    def finding(self, finding): pass
    def close(self): pass
"""
FINDING = Finding(code="HC101", kind="nonfinite", severity="error", title="overflow", step=3)


class Fragile:
    """Fails at the named call."""

    def __init__(self, at: str) -> None:
        self._at = at

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        self._reach("write")

    def finding(self, finding: Finding) -> None:
        self._reach("finding")

    def close(self) -> None:
        self._reach("close")

    def _reach(self, call: str) -> None:
        if call == self._at:
            raise RuntimeError("no network")


def test_built_in_sinks_are_found_in_the_folder() -> None:
    assert {"memory", "console"} <= set(sink_names())
    assert load_sinks(["memory"]).names == ["memory"]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_sinks(["memroy"])

    assert "memory" in caught.value.fix


def test_a_plugin_file_adds_a_sink(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(PLUGIN)

    sinks = load_sinks(["mine"], [str(tmp_path / "my.py")], start=SinkStart(rank=2))
    sinks.write([], StepRecord(step=5))

    assert (sinks["mine"].rank, sinks["mine"].steps) == (2, [5])


@pytest.mark.parametrize("text", [None, "raise ValueError('no')", "import nothing_such_at_all", "def ("])
def test_a_broken_plugin_file_is_an_error_of_ours(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "broken.py"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        load_sinks([], [str(path)])

    assert caught.value.where == str(path)


def test_installed_packages_add_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        "good": EntryPoint("good", "hypocenter.record.sinks.memory:Memory", catalogue.ENTRY_POINT),
        "bad": EntryPoint("bad", "nothing_such:Sink", catalogue.ENTRY_POINT),
    }
    monkeypatch.setattr(
        catalogue, "entry_points", lambda group, name=None: [p for p in points.values() if name in (None, p.name)]
    )
    monkeypatch.setattr(catalogue, "_registered", {})
    warnings: list[str] = []

    sinks = load_sinks(["bad", "good"], warn=warnings.append)

    assert sinks.names == ["good"]
    assert isinstance(sinks["good"], Memory)
    assert warnings == ["sink 'bad' cannot be loaded (ModuleNotFoundError: No module named 'nothing_such')"]


@pytest.mark.parametrize("at", ["write", "finding", "close"])
def test_a_failing_sink_is_switched_off_with_one_warning(at: str) -> None:
    warnings: list[str] = []
    memory = Memory()
    sinks = Sinks({"fragile": Fragile(at), "memory": memory}, warnings.append)

    for step in range(3):
        sinks.write([], StepRecord(step=step))
        sinks.finding(FINDING)
    sinks.close()

    assert warnings == ["sink 'fragile' failed and is switched off (RuntimeError: no network)"]
    assert [s.step for s in memory.steps] == [0, 1, 2]
    assert memory.findings == [FINDING] * 3
