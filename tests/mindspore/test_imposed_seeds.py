"""--seed, --deterministic and hypocenter.seed_all in a MindSpore program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from started import started

DRAWS = """
print(random.random(), np.random.rand(), ops.rand(1).asnumpy()[0], nn.Dense(2, 1).weight.asnumpy()[0, 0])
print(ms.default_generator.initial_seed(), ms.dataset.config.get_seed())
"""
IMPORTS = """
import os
import random
import numpy as np
import mindspore as ms
from mindspore import nn, ops
"""
WITH_WATCH = """
from hypocenter.config import Config
from hypocenter.session.mindspore.imposed.apply import begin
print(begin(Config(**eval(os.environ["OPTIONS"])), print))
"""


def run(tmp_path: Path, program: str, options: str = "{}", *, is_cold: bool = False) -> list[str]:
    script = tmp_path / "program.py"
    script.write_text(program)
    done = started(script, folder=tmp_path, is_cold=is_cold, OPTIONS=options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_all_generators_begin_at_the_seed(tmp_path: Path) -> None:
    program = IMPORTS + WITH_WATCH + DRAWS

    first, again = (run(tmp_path, program, "{'seed': 7}") for _ in range(2))
    other = run(tmp_path, program, "{'seed': 8}")

    assert first == again
    assert first[0] == "{'seed': 'seed 7 for random, numpy, mindspore'}"
    assert first[2] == "7 7"
    assert all(a != b for a, b in zip(first[1].split(), other[1].split(), strict=True))


def test_nothing_is_imposed_unasked(tmp_path: Path) -> None:
    lines = run(tmp_path, IMPORTS + WITH_WATCH + "print(os.environ.get('HCCL_DETERMINISTIC'), ms.get_seed())")

    assert lines == ["{}", "None None"]


def test_the_program_is_deterministic_and_may_say_so_itself(tmp_path: Path) -> None:
    program = IMPORTS + WITH_WATCH
    program += "ms.set_deterministic(True)\n"
    program += "print(ms.get_context('deterministic'), os.environ['HCCL_DETERMINISTIC'], "
    program += "os.environ['ASCEND_LAUNCH_BLOCKING'], ms.get_seed())"

    lines = run(tmp_path, program, "{'deterministic': True}")

    assert lines[-1] == "ON true 1 42"


def test_generators_made_without_a_seed_get_one(tmp_path: Path) -> None:
    program = IMPORTS + WITH_WATCH
    program += "a = np.random.default_rng().random(), np.random.default_rng().random()\n"
    program += "np.random.seed(); random.seed(); ms.seed()\n"
    program += "print(*a, np.random.rand(), random.random(), ms.initial_seed())"

    first, again = (run(tmp_path, program, "{'deterministic': True}") for _ in range(2))

    assert first == again
    assert len(set(first[-1].split())) == 5


def test_seeds_of_the_program_win(tmp_path: Path) -> None:
    program = IMPORTS + WITH_WATCH + "ms.set_seed(3)\nprint(ops.rand(1).asnumpy()[0])"

    assert run(tmp_path, program, "{'seed': 7}")[-1] == run(tmp_path, program)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["after", "before"])  # `before` takes a process of its own
def test_seed_all_in_a_mindspore_program(tmp_path: Path, order: str) -> None:
    call = "import hypocenter\nhypocenter.seed_all(5, dropout=False)\n"
    program = (call + IMPORTS if order == "before" else IMPORTS + call) + DRAWS
    program += "print(ms.get_context('deterministic'), (nn.Dropout(p=0.5)(ops.ones(64)) == 1).all())"

    first, again = (run(tmp_path, program, is_cold=order == "before") for _ in range(2))

    assert first == again
    assert first[1:] == ["5 5", "ON True"]
