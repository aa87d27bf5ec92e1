"""Programs that only compute outputs: a bad one is told, with the operation that made it. The whole way."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

import warm
from program_text import diagnosed, line_of, ran

PROGRAM = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
    def forward(self, x):
        h = self.a(x)
        if call == 2: h = SPOIL  # fault
        return RETURN
torch.manual_seed(0)
net = Net()
MODE
def compute():
    return net(torch.randn(3, 4))
for call in range(5):
    with torch.CONTEXT():
        out = compute()
"""
WITHOUT = {"no_grad": "no_grad", "grad": "enable_grad"}


def program(*, spoil: str = "h", mode: str = "net.eval()", context: str = "no_grad", result: str = "self.b(h)") -> str:
    text = PROGRAM.replace("SPOIL", spoil).replace("MODE", mode).replace("CONTEXT", context)
    return text.replace("RETURN", result)


def test_the_operation_is_named_however_many_calls_there_were(tmp_path: Path) -> None:
    text = program(spoil="h / (h - h)").replace("range(5)", "range(400)").replace("call == 2", "call == 390")

    (found,) = diagnosed(text.replace("out = compute()", "out = compute().softmax(-1).argmax(-1)"), tmp_path)[
        "findings"
    ]

    assert (found["step"], found["op"], found["source"]["line"]) == (390, "aten.div.Tensor", line_of(text, "# fault"))


@pytest.mark.parametrize("context", WITHOUT.values(), ids=WITHOUT)
@pytest.mark.parametrize(
    ("spoil", "op", "cause"),
    [
        ("h / (h - h)", "aten.div.Tensor", "division-by-zero"),
        ("torch.sqrt(-h.abs())", "aten.sqrt.default", "out-of-domain"),
        ("(h.half() * 6e4).float()", "aten.mul.Tensor", "format-overflow"),
    ],
)
def test_the_operation_of_the_first_bad_output_is_named(
    spoil: str, op: str, cause: str, context: str, tmp_path: Path
) -> None:
    text = program(spoil=spoil, context=context)

    (found,) = diagnosed(text, tmp_path)["findings"]

    assert (found["code"], found["severity"], found["step"], found["op"]) == ("HC104", "warning", 2, op)
    assert (found["cause"], found["source"]["line"]) == (cause, line_of(text, "# fault"))


def test_an_output_of_inference_mode_is_told_by_its_place(tmp_path: Path) -> None:
    """Nothing is kept of what is computed there, and nothing can be done again."""
    run = diagnosed(program(spoil="h / (h - h)", context="inference_mode"), tmp_path)

    (found,) = run["findings"]
    assert (found["step"], found["site"], found["port"], found["severity"]) == (2, "", "out", "warning")


@pytest.mark.parametrize(
    "text",
    [
        program(),
        program(spoil="h.masked_fill(h > 0, float('-inf'))", result="h"),  # masked logits
    ],
    ids=["healthy", "masked"],
)
def test_finite_outputs_and_masks_are_silent(text: str, tmp_path: Path) -> None:
    try:
        assert diagnosed(text, tmp_path)["findings"] == []
    except FileNotFoundError:  # nothing was recorded, so there is nothing to say
        assert not list((tmp_path / "run").glob("rank-*"))


def test_what_a_model_gives_before_it_is_trained_is_no_finding(tmp_path: Path) -> None:
    training = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(4):
    optimizer.zero_grad()
    compute().pow(2).mean().backward()
    optimizer.step()
"""
    found = diagnosed(program(spoil="h / (h - h)") + training, tmp_path)

    assert (found["status"], found["n_steps"]) == ("healthy", 4)
    assert not list((tmp_path / "run").rglob("evidence.json"))


def test_updates_inside_torch_func_are_said_not_to_be_seen(tmp_path: Path) -> None:
    training = """
params = dict(net.named_parameters())
def loss(params, x): return torch.func.functional_call(net, params, (x,)).pow(2).mean()
for step in range(4):
    grads = torch.func.grad(loss)(params, torch.randn(3, 4))
    params = {name: p - 0.01 * grads[name] for name, p in params.items()}
"""
    said = ran(program() + training, tmp_path)

    assert "it computes with torch.func" in said
    assert "healthy" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "traced",
    [
        "torch.export.export(net, (torch.randn(3, 4),)).graph",
        "__import__('torch.fx.experimental.proxy_tensor', fromlist=['_']).make_fx(net)(torch.randn(3, 4)).graph",
    ],
    ids=["export", "make_fx"],
)
def test_a_graph_that_the_program_takes_holds_nothing_of_ours(traced: str, tmp_path: Path) -> None:
    text = program().replace("if call == 2: h = h  # fault", "") + f"print({traced})\n"
    script = tmp_path / "alone.py"
    script.write_text(text, encoding="utf-8")

    watched = ran(text, tmp_path, stream="stdout")

    alone = warm.run([sys.executable, str(script)], env=os.environ, timeout=120)
    assert (watched, alone.returncode) == (alone.stdout, 0)
    assert "addmm" in watched or "linear" in watched
