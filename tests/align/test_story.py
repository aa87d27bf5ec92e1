"""The case study of the precision guide, end to end, on two programs that really train (docs/align.md tells it).

The candidate looks its tokens up, and adds up their gradient, in float32 where the baseline does so in bfloat16; and
it gives no weight decay to biases and one-dimensional weights. About 25 s of one core.
"""

from __future__ import annotations

from json import loads
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from started import start

from hypocenter.align.alignment import Alignment
from hypocenter.align.engine import How, align, status_of
from hypocenter.align.plan import Plan, read_plan
from hypocenter.cli.commands.align import command
from hypocenter.json_answer import published, to_json
from hypocenter.report.alignment import html, terminal

PROGRAMS = Path(__file__).parent / "programs"


def _plan(folder: Path, flags: str) -> Plan:
    path = folder / "port.toml"
    path.write_text(f"""
[baseline]
config = "{PROGRAMS / "configs" / "gpt.json"}"
command = "python {PROGRAMS / "reference_gpt.py"}"
[candidate]
config = "{PROGRAMS / "configs" / "gpt.json"}"
command = "python {PROGRAMS / "ported_gpt.py"} {flags}"
[stages]
steps = 2
frozen_steps = 10
long_steps = 20
""")
    return read_plan(path)


def _rendered(found: Alignment) -> str:
    """All renderings can be made, and JSON keeps to its schema; gives the text."""
    jsonschema.validate(loads(to_json(found)), published(Alignment))
    page = html.render(found)
    assert "<script" not in page
    assert "default-src &#39;none&#39;" in page
    return terminal.render(found)


@pytest.mark.night
def test_the_case_of_the_guide(tmp_path: Path) -> None:
    runs: list[str] = []
    how = How(start=start, tell=lambda text: runs.append(text) if "hypocenter run" in text else None)

    found = align(_plan(tmp_path, "--embedding float32 --decay matrices"), how)

    assert (found.status, found.stage) == ("stopped", 3), found.sentence
    backward = found.stages[3]
    assert (backward.site, backward.cause) == ("tokens.weight", "precision-mismatch")
    assert "bfloat16 in the baseline and float32 in the candidate" in backward.why[0]
    assert [one["site"] for one in backward.figures["local_norms"] if one["verdict"] == "differs"] == ["tokens.weight"]
    assert found.stages[2].verdict == "passed"  # the loss of the first step agrees, as in the guide
    assert "✗ 3 backward" in _rendered(found)

    found = align(_plan(tmp_path, "--embedding bfloat16 --decay matrices"), how)

    assert (found.status, found.stage) == ("stopped", 4), found.sentence
    assert "weight_decay of 18 of 29 parameters is 0.1 in the baseline and 0 in the candidate" in found.sentence
    assert found.stages[4].cause == "config-mismatch"
    (decay,) = found.stages[4].figures["settings"]
    assert "blocks.0.norm1.weight" in decay["parameters"]
    assert "head.weight" not in decay["parameters"]
    _rendered(found)

    plan = _plan(tmp_path, "--embedding bfloat16 --decay all")
    assert status_of(plan).status == "cannot-tell"  # what was found is of other programs
    found = align(plan, how)

    assert found.status == "aligned", found.sentence
    floor, long = found.stages[6], found.stages[7]
    assert floor.verdict == long.verdict == "passed"
    assert "within the noise of 2 repeats of the baseline" in long.sentence
    assert any(point not in (None, 0.0) for point in _apart(long.figures["curves"][0]))  # noise, not nothing
    assert "✓ 7 long run" in _rendered(found)
    assert len([run for run in runs if run.startswith("baseline steps")]) == 1  # the baseline is recorded once

    n_runs = len(runs)
    shown = CliRunner().invoke(
        command, ["status", str(plan.path)], standalone_mode=False, help_option_names=["-h", "--help"]
    )
    assert align(plan, how).status == "aligned"
    assert len(runs) == n_runs
    assert shown.return_value == 0
    assert shown.output.startswith("aligned: ")


def _apart(curve: dict[str, list[float]]) -> list[float]:
    return [b - a for a, b in zip(curve["baseline"], curve["candidate"], strict=True)]
