"""`hypocenter twin` on MindSpore programs: what it answers there, and what it says it cannot change."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from started import SECONDS, warm

from hypocenter.cli.commands.run import environment
from hypocenter.twins.answer import Twin
from hypocenter.twins.change import Asked, by_name
from hypocenter.twins.runs import NotApplicableError, Runs

PROGRAM = """
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops

ms.set_context(pynative_synchronize=True)
is_seeded = "--unseeded" not in sys.argv
if is_seeded:
    ms.set_seed(0)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(11, 6), nn.LayerNorm((6,)), nn.Dense(6, 11)

    def construct(self, ids):
        return self.head(self.norm(self.embed(ids)))


def forward(ids):
    return ops.cross_entropy(net(ids).reshape(-1, 11), ((ids + 1) % 11).reshape(-1))


net = Net()
net.set_train()
optimizer = nn.Adam(net.trainable_params(), 0.05)
saved = Path(sys.argv[1]) / "last.ckpt"
begin = 0
if "--resume" in sys.argv:
    values = ms.load_checkpoint(str(saved))
    begin = int(values.pop("step").asnumpy())
    ms.load_param_into_net(net, values)
    if "--forgets" not in sys.argv:
        ms.load_param_into_net(optimizer, values)
differentiated = ms.value_and_grad(forward, None, optimizer.parameters)
for step in range(begin, 6):
    ids = np.random.default_rng(step if is_seeded else None).integers(0, 11, (2, 5)).astype(np.int32)
    loss, gradients = differentiated(ms.Tensor(ids))
    optimizer(gradients)
    if step == 1:
        values = {p.name: p for p in (*net.get_parameters(), *optimizer.get_parameters())}
        values["step"] = ms.Parameter(ms.Tensor(step + 1), name="step")
        ms.save_checkpoint([{"name": name, "data": value} for name, value in values.items()], str(saved))
"""


def start(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: Path, timeout_s: float | None) -> int:
    """In a fork of a Python that has MindSpore."""
    done = warm.run(argv, env={**env, "GLOG_v": "3", "OMP_NUM_THREADS": "1"}, cwd=cwd, timeout=timeout_s or SECONDS)
    output.write_text(done.stdout + done.stderr, encoding="utf-8")
    return done.returncode


def twin(change: str, folder: Path, *words: str, **options: Any) -> Twin:
    script = folder / "train.py"
    script.write_text(PROGRAM)
    program = (str(script), "{folder}", *words)
    runs = Runs(
        program=program, argv=(sys.executable, *program), base=folder, environment=environment, start=start
    )  # fmt: skip
    return by_name(change).make(Asked(runs=runs, steps=2, **options))


def test_a_program_that_repeats_itself_is_compared_by_its_values(tmp_path: Path) -> None:
    found = twin("nothing", tmp_path)

    assert (found.status, found.first, found.n_steps) == ("same", None, 2)
    assert "equal to the bit" in found.sentence


def test_a_program_without_a_seed_is_told_of_it(tmp_path: Path) -> None:
    found = twin("nothing", tmp_path, "--unseeded")

    assert found.status == "differs"
    assert found.first is not None
    assert found.first.step == 0
    assert "mindspore.set_seed" in found.fix


@pytest.mark.night
def test_another_number_of_threads(tmp_path: Path) -> None:
    assert twin("threads", tmp_path).status == "same"


@pytest.mark.slow
@pytest.mark.parametrize(("words", "status", "cause"), [
    ((), "same", None),
    (("--forgets",), "differs", "optimizer-state-not-restored"),
])  # fmt: skip
def test_a_resumed_program(tmp_path: Path, words: tuple[str, ...], status: str, cause: str | None) -> None:
    found = twin("resume", tmp_path, stop_at=3, second_words=("--resume", *words))

    assert (found.status, found.cause) == (status, cause)


@pytest.mark.parametrize("change", ["poison", "eager"])
def test_what_is_made_inside_of_pytorch_is_said_not_to_apply(tmp_path: Path, change: str) -> None:
    with pytest.raises(NotApplicableError, match="is not changed in MindSpore programs") as raised:
        twin(change, tmp_path)

    assert raised.value.why == "the change is made inside of PyTorch"


def test_ranks_are_not_made_of_it(tmp_path: Path) -> None:
    with pytest.raises(NotApplicableError, match="is not made a job of several ranks"):
        twin("ranks", tmp_path)
