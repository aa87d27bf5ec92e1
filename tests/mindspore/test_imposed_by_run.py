"""What `hypocenter align` asks of both programs, by `hypocenter run` on an unmodified MindSpore program."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from started import started

from hypocenter.compare.updates.recorded import RecordedUpdates
from hypocenter.record.reader import open_run

PROGRAM = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.drop = nn.Embedding(11, 6), nn.LayerNorm((6,)), nn.Dropout(p=0.5)
        self.head = nn.Dense(6, 11)

    def construct(self, ids):
        return self.head(self.drop(self.norm(self.embed(ids))))


net = Net()
net.set_train()
optimizer = nn.AdamWeightDecay(net.trainable_params(), nn.cosine_decay_lr(0.01, 0.1, 10, 1, 10))


def forward(ids, labels):
    return ops.cross_entropy(net(ids).reshape(-1, 11), labels.reshape(-1))


differentiated = ms.value_and_grad(forward, None, optimizer.parameters)
for step in range(6):
    ids = ms.Tensor(np.random.randint(0, 11, (2, 5)).astype(np.int32))
    loss, gradients = differentiated(ids, (ids + 1) % 11)
    optimizer(gradients)
    print(step, loss)
"""
EXACT = ("--deterministic", "--seed", "3", "--no-dropout")
LOOKS = ("--audit", "1", "--relations", "1")  # by default a slow machine looks at fewer steps
VALUES = ("--level", "tensors", "--schedule", "0-1", "--param-schedule", "0-1", "--stop-after-step", "1")


def run(tmp_path: Path, name: str, *options: str, is_cold: bool = False) -> dict[str, Any]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = ("-m", "hypocenter", "run", *options, "--out", tmp_path / name, program)
    done = started(*words, folder=tmp_path, is_cold=is_cold)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((tmp_path / name / "run.json").read_text())["imposed"]


@pytest.mark.night
def test_a_run_is_fed_with_weights_and_gradients_of_another(tmp_path: Path) -> None:
    first = run(tmp_path, "updates", *VALUES, *EXACT, "--save-initial-weights", "--save-batches", "1", is_cold=True)
    fed = run(
        tmp_path, "fed", *VALUES, "--deterministic", "--seed", "4", "--initial-weights", str(tmp_path / "updates"),
        "--gradients-from", str(tmp_path / "updates"),
    )  # fmt: skip

    assert first["seed"] == "seed 3 for random, numpy, mindspore"
    assert first["dropout"] == "dropout off"
    assert first["stop"] == "stop after step 1"
    assert first["saved_weights"] == "initial weights written, 5 tensors"
    assert list((tmp_path / "updates").rglob("step-000000/mb-0.safetensors"))
    assert fed["initial_weights"].endswith("(by name)")
    assert fed["gradients"].startswith("gradients of steps 0, 1 from ")
    sides = [RecordedUpdates(open_run(tmp_path / name)) for name in ("updates", "fed")]
    for step in (0, 1):
        ours, theirs = ({one.name: one for one in side.of(step)} for side in sides)
        assert set(ours) == set(theirs)
        assert len(ours) == 5
        for name, one in ours.items():
            assert one.gradient is not None
            assert np.array_equal(one.gradient.values(), theirs[name].gradient.values())  # type: ignore[union-attr]
            assert np.array_equal(one.after.values(), theirs[name].after.values())


def test_a_run_repeats_itself_with_rate_0(tmp_path: Path) -> None:
    imposed = [
        run(tmp_path, name, *EXACT, *LOOKS, "--impose-lr", "0", "--stop-after-step", "2", "--level", "modules")
        for name in ("one", "two")
    ]

    assert imposed[0]["learning_rate"] == "learning rate 0 at every update"
    one, two = (
        {(r.step, r.phase, r.site, r.port): r.summary for r in open_run(tmp_path / name).readings()}
        for name in ("one", "two")
    )
    assert one == two
    assert {record.lr for _, record in open_run(tmp_path / "one").step_records()} == {0.0}
