"""torch.compile: no extra graph, break or recompile; the same bits; a failure blamed by an eager replay."""

import msgspec
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.diagnose.evidence import Evidence
from hypocenter.record.reader import open_run

pytestmark = pytest.mark.slow


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 1)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.norm(self.up(x))))


def train(how, bad_step=None, n_steps=5):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if how == "in place":
        model.compile(fullgraph=True)
        call = model
    else:
        call = torch.compile(model, fullgraph=True)
    losses = []
    for step in range(n_steps):
        x = torch.randn(4, 8)
        if step == bad_step:
            with torch.no_grad():
                model.down.weight.fill_(1e38)
        loss = call(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    counted = (counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))
    return losses, [p.detach().clone() for p in model.parameters()], counted


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_compiled_training_is_bit_identical_with_one_graph(tmp_path, how):
    plain = train(how)

    for level in ("sentinel", "modules"):
        with hypocenter.watch(level=level, out=tmp_path / level):
            watched = train(how)

        assert plain[0] == watched[0]
        assert all(torch.equal(a, b) for a, b in zip(plain[1], watched[1], strict=True))
        assert plain[2] == watched[2] == (1, 0)


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_a_failure_in_a_compiled_model_is_blamed_to_an_op(tmp_path, how):
    with hypocenter.watch(out=tmp_path / "run"):
        train(how, bad_step=3)

    ((_, path),) = open_run(tmp_path / "run").evidence_files()
    found = msgspec.json.decode(path.read_bytes(), type=Evidence)
    assert (found.step, found.reproduced) == (3, True)
    assert found.origin is not None
    assert (found.origin.op, found.origin.site) == ("aten.addmm.default", "down")


def test_a_compiled_loss_function_is_not_disturbed(tmp_path):
    def run():
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        loss_of = torch.compile(lambda y: (y * y).mean() * 2, fullgraph=True)
        losses = []
        for _ in range(4):
            loss = loss_of(model(torch.randn(4, 8)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())

    plain = run()
    with hypocenter.watch(out=tmp_path / "run"):
        watched = run()

    assert plain == watched


def train_with_compiled_step(bad_step=None):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2))
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for n in range(8):
        model(torch.randn(4, 8) * (float("inf") if n == bad_step else 1.0)).pow(2).mean().backward()
        step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()], counters["stats"]["unique_graphs"]


def test_a_compiled_step_is_seen_by_what_it_does_and_compiled_no_more_often(tmp_path):
    plain, n_graphs = train_with_compiled_step()

    with hypocenter.watch(out=tmp_path / "run"):
        watched, n_watched = train_with_compiled_step()

    assert n_watched == n_graphs
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert diagnose(open_run(tmp_path / "run")).n_steps == 7  # the one in which it is traced counts with the next


def test_what_a_compiled_step_uses_is_looked_into(tmp_path):
    with hypocenter.watch(out=tmp_path / "run"):
        train_with_compiled_step(bad_step=6)

    (finding, *_) = diagnose(open_run(tmp_path / "run")).findings
    assert (finding.code, finding.step) == ("HC102", 5)
