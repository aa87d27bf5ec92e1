"""Ways into autograd that go past `backward`, beside an optimizer: the whole way."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

from program_text import diagnosed, line_of

from hypocenter.record.reader import open_run

PROGRAM = """
import torch
from torch.autograd import Variable
from torch.autograd.graph import GradientEdge
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
parameters = list(net.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.01)
def straight(output, grad):
    Variable._execution_engine.run_backward(
        tensors=(output,), grad_tensors=(grad,), keep_graph=False, create_graph=False, inputs=(),
        allow_unreachable=True, accumulate_grad=True)
for step in range(5):
    optimizer.zero_grad()
    for part in range(2):
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        loss = (net(x) - y).pow(2).mean()
        if step == BAD and part == 1: loss = loss * 0 / (loss - loss)  # fault
        BACKWARD
    optimizer.step()
"""
ADD = "for p, g in zip(parameters, gs): p.grad = g if p.grad is None else p.grad.add_(g)"
BACKWARD = {
    "set": f"gs = torch.autograd.grad(loss, parameters)\n        {ADD}",
    "set-by-place": (
        "edges = [torch.autograd.graph.get_gradient_edge(p) for p in parameters]\n"
        f"        gs = torch.autograd.grad(loss, edges)\n        {ADD}"
    ),
    "straight": "straight(loss, torch.ones_like(loss))",
    "emptied": (  # as Megatron's schedules do with a loss, before they scale it
        "loss.data = torch.full((1,), float('nan'))\n"
        "        scaled = loss * torch.tensor([4.0])\n"
        "        straight(scaled, torch.ones_like(scaled) / 4)"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD)
def test_the_micro_batch_and_line_that_failed_are_named(backward: str, tmp_path: Path) -> None:
    text = PROGRAM.replace("BACKWARD", backward).replace("BAD", "3")

    found = diagnosed(text, tmp_path)["findings"][0]

    assert (found["step"], found["microbatch"], found["op"]) == (3, 1, "aten.div.Tensor")
    assert (found["cause"], found["confidence"]) == ("division-by-zero", "proven")
    assert found["source"]["line"] == line_of(text, "# fault")


@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD)
def test_healthy_micro_batches_are_counted_with_their_losses(backward: str, tmp_path: Path) -> None:
    found = diagnosed(PROGRAM.replace("BACKWARD", backward).replace("BAD", "-1"), tmp_path)

    steps = [record for _, record in open_run(tmp_path / "run").step_records()]
    assert (found["status"], found["findings"]) == ("healthy", [])
    assert [record.n_microbatches for record in steps] == [2] * 5
    assert all(record.loss is not None and 0.0 < record.loss < 100.0 for record in steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    "looked_at",
    [
        "gs = torch.autograd.grad(loss, parameters, retain_graph=True)",
        "gs = torch.autograd.grad(loss, x.requires_grad_(), retain_graph=True, allow_unused=True)",
    ],
    ids=["parameters", "input"],
)
def test_gradients_that_are_only_looked_at_are_no_micro_batch(looked_at: str, tmp_path: Path) -> None:
    text = PROGRAM.replace("BACKWARD", f"{looked_at}\n        loss.backward()").replace("BAD", "-1")

    diagnosed(text, tmp_path)

    assert [record.n_microbatches for _, record in open_run(tmp_path / "run").step_records()] == [2] * 5
