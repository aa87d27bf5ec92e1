"""--no-dropout in a MindSpore program: cells, functions, operators; PyNative and GRAPH."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from started import started

PROGRAM = """
import sys
import numpy as np
import mindspore as ms
from mindspore import nn, ops
from hypocenter.config import Config
from hypocenter.session.mindspore.imposed import dropout

asked, mode = sys.argv[1] == "off", sys.argv[2]
print(dropout.begin(Config(no_dropout=asked), print))
ms.set_context(mode=getattr(ms, mode))
ms.set_seed(1)


class Net(nn.Cell):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.cell = nn.Dropout(p=0.5)
        self.operator = ops.Dropout(keep_prob=0.5)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5)
        self.recurrent = nn.LSTM(8, 8, num_layers=2, dropout=0.5)

    def construct(self, x):
        if self.kind == "cell":
            return self.cell(x)
        if self.kind == "function":
            return ops.dropout(x, p=0.5, training=True)
        if self.kind == "operator":
            return self.operator(x)[0]
        if self.kind == "made in the graph":
            return ops.Dropout(keep_prob=0.5)(x)[0]
        if self.kind == "attention":
            return self.attention(x, x, x)[0]
        return self.recurrent(x)[0]


x = ms.Tensor(np.ones((4, 4, 8), np.float32))
for kind in ("cell", "function", "operator", "made in the graph", "attention", "recurrent"):
    net = Net(kind)
    net.set_train()
    once, again = net(x).asnumpy(), net(x).asnumpy()
    same = (once == again).all()
    print(kind, "repeats" if same else "differs", "is input" if (once == 1).all() else "")
print(Net("cell").cell)
"""


def run(tmp_path: Path, *args: str) -> list[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = started(program, *args, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    return [line.strip() for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["PYNATIVE_MODE", "GRAPH_MODE"])
def test_nothing_is_dropped_where_that_was_asked_for(tmp_path: Path, mode: str) -> None:
    lines = run(tmp_path, "off", mode)

    assert lines == [
        "{'dropout': 'dropout off'}",
        "cell repeats is input",
        "function repeats is input",
        "operator repeats is input",
        "made in the graph repeats is input",
        "attention repeats",
        "recurrent repeats",
        "Dropout(p=0.5)",
    ]


def test_values_are_dropped_where_it_was_not(tmp_path: Path) -> None:
    lines = run(tmp_path, "on", "PYNATIVE_MODE")

    assert lines[0] == "{}"
    assert [line.split()[-1] for line in lines[1:6]] == ["differs"] * 5
