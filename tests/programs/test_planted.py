"""One fault in each ordinary program: its step, line, operator, cause and module are named.

Here each program has one of its places and one kind, in turn; `python tests/programs/sweep.py` takes all of them.
"""

import sys
from pathlib import Path

import pytest
from by_day import first_of_each

sys.path.insert(0, str(Path(__file__).parent))

import planting
import program
import sweep

LEVELS = ("sentinel", "modules")
SCRIPTS = [script for script in program.ORDINARY if planting.places(script.read_text(encoding="utf-8"))]


def by_name(script: Path) -> str:
    return script.stem


@pytest.mark.parametrize("script", first_of_each(SCRIPTS, lambda script: SCRIPTS.index(script) // 7), ids=by_name)
def test_the_fault_is_named(script: Path) -> None:
    number = SCRIPTS.index(script)
    trials = list(sweep.trials(script))

    verdict = sweep.judge(trials[number * 7 % len(trials)], LEVELS[number % 2])

    assert not verdict.is_false_witness, verdict.found
    assert verdict.wrong == (), verdict.found


def test_what_is_written_is_one_statement() -> None:
    text = '"""Text."""\nimport torch\nfor i in range(3):  # turn\n    x = torch.ones(2)  # plant: data\n    print(x)\n'
    place = planting.places(text)[0]

    planted = planting.planted(text, place, planting.KINDS[1], 2)

    assert planted.text.splitlines()[planted.line - 2 : planted.line] == [
        "    if turn[0] == 2:",
        "        x = x + torch.log(x * 0)",
    ]
    lines = text.splitlines()
    assert [line for line in planted.text.splitlines() if line in lines] == lines
