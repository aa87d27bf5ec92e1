"""Programs without an optimizer, without a module, and with a batch that their own code spoils: the whole way."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

from program_text import diagnosed, line_of

HAND_WRITTEN = {  # an update at the end of a step, as tutorials and examples write it
    "data-add": "for p in parameters: p.data.add_(p.grad, alpha=-0.01)",
    "in-place": "with torch.no_grad():\n        for p in parameters: p -= 0.01 * p.grad",
    "new-data": "for p in parameters: p.data = p.data - 0.01 * p.grad",
    "copied": "with torch.no_grad():\n        for p in parameters: p.copy_(p - 0.01 * p.grad)",
}
MODEL = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
parameters = list(net.parameters())
for step in range(6):
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    loss = (net(x) - y).pow(2).mean()
    if step == BAD: loss = loss * 0 / (loss - loss)  # fault
    for p in parameters: p.grad = None
    loss.backward()
    UPDATE
"""
RAW = """
import torch
torch.manual_seed(0)
w1, w2 = torch.randn(4, 5, requires_grad=True), torch.randn(5, 1, requires_grad=True)
parameters = [w1, w2]
def forward(x):
    h = torch.tanh(x @ w1)
    if step == BAD: h = h * 0 / (h - h)  # fault
    return h @ w2
for step in range(6):
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    loss = (forward(x) - y).pow(2).mean()
    for p in parameters: p.grad = None
    loss.backward()
    UPDATE
"""
SPOILT = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(6):
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    SPOIL
    loss = (net(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOADER = """
import sys, torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 32
    def __getitem__(self, i):
        x = torch.full((3,), float(i))
        return (x / 0 if i == 21 else x), x.sum()
torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-5)
for x, y in DataLoader(Numbers(), batch_size=8, shuffle=True, num_workers=WORKERS):
    x = x.double().float()
    loss = (net(x).squeeze(1) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("update", HAND_WRITTEN.values(), ids=HAND_WRITTEN)
def test_an_update_by_hand_ends_a_step(update: str, tmp_path: Path) -> None:
    found = diagnosed(MODEL.replace("UPDATE", update).replace("BAD", "-1"), tmp_path)

    assert (found["status"], found["n_steps"]) == ("healthy", 6)


@pytest.mark.slow
@pytest.mark.parametrize("program", [MODEL, RAW], ids=["module", "tensors"])
@pytest.mark.parametrize("update", HAND_WRITTEN.values(), ids=HAND_WRITTEN)
def test_the_line_that_failed_is_named_without_an_optimizer(program: str, update: str, tmp_path: Path) -> None:
    text = program.replace("UPDATE", update).replace("BAD", "3")

    found = diagnosed(text, tmp_path)["findings"][0]

    assert (found["step"], found["op"], found["cause"]) == (3, "aten.div.Tensor", "division-by-zero")
    assert (found["source"]["line"], found["confidence"]) == (line_of(text, "# fault"), "proven")


ASKED_FOR = {  # gradients that are asked for, and are in no `.grad`
    "tuple": "gs = torch.autograd.grad(loss, parameters)",
    "generator": "gs = torch.autograd.grad(loss, (p for p in parameters))",
    "each-alone": "gs = [torch.autograd.grad(loss, p, retain_graph=True)[0] for p in parameters]",
}
WITH_THEM = "with torch.no_grad():\n        for p, g in zip(parameters, gs): p -= 0.01 * g"


@pytest.mark.slow
@pytest.mark.parametrize("program", [MODEL, RAW], ids=["module", "tensors"])
@pytest.mark.parametrize("asked", ASKED_FOR.values(), ids=ASKED_FOR)
def test_gradients_that_the_program_asks_for_are_a_backward(program: str, asked: str, tmp_path: Path) -> None:
    text = program.replace("UPDATE", WITH_THEM).replace("loss.backward()", asked).replace("BAD", "3")

    found = diagnosed(text, tmp_path)["findings"][0]

    assert (found["step"], found["op"], found["cause"]) == (3, "aten.div.Tensor", "division-by-zero")
    assert (found["source"]["line"], found["confidence"]) == (line_of(text, "# fault"), "proven")


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED_FOR.values(), ids=ASKED_FOR)
def test_an_update_with_gradients_asked_for_ends_a_step(asked: str, tmp_path: Path) -> None:
    text = MODEL.replace("UPDATE", WITH_THEM).replace("loss.backward()", asked).replace("BAD", "-1")

    found = diagnosed(text, tmp_path)

    assert (found["status"], found["n_steps"]) == ("healthy", 6)


@pytest.mark.parametrize(
    "penalty",
    [
        "g, = torch.autograd.grad(loss, x, create_graph=True)\n    loss = loss + g.pow(2).mean()",
        "gs = torch.autograd.grad(loss, parameters, retain_graph=True)",
    ],
    ids=["penalty", "looked-at"],
)
def test_gradients_beside_an_optimizer_are_no_step(penalty: str, tmp_path: Path) -> None:
    text = MODEL.replace("    for p in parameters: p.grad = None", f"    optimizer.zero_grad()\n    {penalty}")
    text = text.replace("x, y = torch.randn(8, 4)", "x, y = torch.randn(8, 4, requires_grad=True)")
    text = text.replace("for step in", "optimizer = torch.optim.SGD(parameters, lr=0.01)\nfor step in")

    found = diagnosed(text.replace("UPDATE", "optimizer.step()").replace("BAD", "-1"), tmp_path)

    assert (found["status"], found["n_steps"]) == ("healthy", 6)


def test_an_operation_outside_modules_is_named_by_function_line_and_variable(tmp_path: Path) -> None:
    text = RAW.replace("UPDATE", HAND_WRITTEN["in-place"]).replace("BAD", "0")

    found = diagnosed(text, tmp_path)["findings"][0]

    assert found["site"] == "forward:8"  # the line begins with a condition, and assigns nothing by itself
    assert found["step"] == 0


def test_several_backward_passes_before_an_update_are_one_step(tmp_path: Path) -> None:
    update = f"if step % 2: {HAND_WRITTEN['data-add']}"
    zeroed = "    if step % 2 == 0:\n        for p in parameters: p.grad = None\n"
    text = MODEL.replace("    for p in parameters: p.grad = None\n", zeroed).replace(
        "UPDATE", update.replace("for", "\n     for")
    )

    found = diagnosed(text.replace("BAD", "-1"), tmp_path)

    assert (found["status"], found["n_steps"]) == ("healthy", 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "op", "cause"),
    [
        ("x = x / (x - x)  # fault", "aten.div.Tensor", "division-by-zero"),
        ("x /= x - x  # fault", "aten.div_.Tensor", "division-by-zero"),
        ("x = x + torch.log(x * 0)  # fault", "aten.log.default", "log-of-zero"),
        ("y = (y.half() * 60000).float()  # fault", "aten.mul.Tensor", "format-overflow"),
    ],
    ids=["out-of-place", "in-place", "minus-infinity", "half"],
)
def test_a_batch_that_the_program_spoils_is_followed_back_to_its_line(
    spoil: str, op: str, cause: str, tmp_path: Path
) -> None:
    text = SPOILT.replace("SPOIL", f"if step == 2: {spoil}")

    found = diagnosed(text, tmp_path)["findings"][0]

    assert (found["step"], found["op"], found["cause"]) == (2, op, cause)
    assert (found["phase"], found["source"]["line"]) == ("data", line_of(text, "# fault"))


def test_what_numpy_spoilt_is_not_proven_to_be_the_data_s_fault(tmp_path: Path) -> None:
    text = SPOILT.replace("SPOIL", "if step == 2: x = torch.from_numpy(x.numpy() * float('nan'))")

    found = diagnosed(text, tmp_path)["findings"][0]

    assert (found["cause"], found["confidence"]) == ("bad-input", "likely")
    assert "where batches are made" not in found["remedy"]["text"]


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [0, 2])
def test_the_index_in_the_dataset_is_named(n_workers: int, tmp_path: Path) -> None:
    found = diagnosed(LOADER.replace("WORKERS", str(n_workers)), tmp_path)["findings"][0]

    assert (found["cause"], found["confidence"], found["dataset_indices"]) == ("bad-input", "proven", [21])


TARGET = """
import torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 1)
    def forward(self, x):
        y = self.fc(x)
        if step == 2 and self is SPOILT: y = y * 0 / (y - y)  # fault
        return y
net, teacher, hyper = Net(), Net(), torch.nn.Linear(4, 5)
optimizer = torch.optim.SGD([*net.parameters(), *hyper.parameters()], lr=0.01)
for step in range(4):
    x = torch.randn(8, 4)
    FORWARD
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
NO_GRAD = "with torch.no_grad(): y = teacher(x) * 0.9"
LENT = "w = hyper(x[:1]); w = {'fc.weight': w[:, :4], 'fc.bias': w[0, 4:]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoilt", "site", "forward"),
    [
        ("teacher", "teacher", f"{NO_GRAD}\n    loss = (net(x) - y).pow(2).mean()"),
        (
            "net",
            "net",
            f"a = net(x).detach()\n    {NO_GRAD.replace('(x)', '(x + a)')}\n    loss = (hyper(x) - y).mean()",
        ),
        ("net", "net", f"{LENT}\n    loss = torch.func.functional_call(net, w, (x,)).mean()"),
        ("net", "", "loss = torch.nn.functional.binary_cross_entropy(torch.sigmoid(net(x)), torch.ones(8, 1))"),
    ],
    ids=["teacher", "detached-and-back", "lent-weights", "died"],
)
def test_a_bad_value_is_followed_back_into_the_model_that_made_it(
    spoilt: str, site: str, forward: str, tmp_path: Path
) -> None:
    text = TARGET.replace("SPOILT", spoilt).replace("FORWARD", forward)

    found = diagnosed(text, tmp_path)["findings"][0]

    assert (found["step"], found["op"], found["cause"]) == (2, "aten.div.Tensor", "division-by-zero")
    assert (found["site"], found["source"]["line"]) == (site, line_of(text, "# fault"))


def test_what_is_computed_for_a_printed_line_breaks_no_later_step(tmp_path: Path) -> None:
    update = "optimizer.step()\n    print((loss + loss).item())"
    text = MODEL.replace("parameters = list(net.parameters())", "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)")
    text = text.replace("for p in parameters: p.grad = None", "optimizer.zero_grad()").replace("BAD", "3")
    text = text.replace("UPDATE", update)

    found = diagnosed(text, tmp_path)["findings"][0]

    assert (found["step"], found["cause"], found["source"]["line"]) == (3, "division-by-zero", line_of(text, "# fault"))


@pytest.mark.skipif(torch.__version__ < "2.7", reason="it takes no edges")
def test_a_backward_from_an_edge_of_the_graph_is_one_from_its_tensor(tmp_path: Path) -> None:
    edge = "torch.autograd.backward(torch.autograd.graph.get_gradient_edge(loss))"
    text = MODEL.replace("loss.backward()", edge).replace("UPDATE", HAND_WRITTEN["in-place"]).replace("BAD", "3")

    found = diagnosed(text, tmp_path)["findings"][0]

    assert (found["step"], found["cause"], found["source"]["line"]) == (3, "division-by-zero", line_of(text, "# fault"))
