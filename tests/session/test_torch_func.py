"""What torch.func has transformed: a call is noted as one operation, and done again to see into it. The whole way."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

import warm
from program_text import diagnosed, line_of, ran

BEGIN = """
import torch
from torch.func import functional_call, grad, grad_and_value, jacrev, vmap
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
params = {name: p.detach().clone() for name, p in net.named_parameters()}
def spoil(x): return x / (x - x)  # fault
def loss_of(params, x, y, is_bad=False):
    out = functional_call(net, params, (x,))
    if is_bad: out = spoil(out)
    return (out - y).pow(2).mean()
for step in range(6):
    x, y, is_bad = torch.randn(8, 4), torch.randn(8, 1), step == BAD
"""
UPDATE = "    params = {name: p - 0.01 * gs[name] for name, p in params.items()}\n"
FUNCTIONAL = {
    "grad": "    gs = grad(loss_of)(params, x, y, is_bad)\n" + UPDATE,
    "grad_and_value": "    gs, loss = grad_and_value(loss_of)(params, x, y, is_bad=is_bad)\n" + UPDATE,
    "per-sample": """
    each = vmap(grad(loss_of), in_dims=(None, 0, 0, None))(params, x, y, is_bad)
    gs = {name: g.mean(0) for name, g in each.items()}
"""
    + UPDATE,
}
MANY = """
    params |= {f"more{i}": params.get(f"more{i}", torch.ones(2)) for i in range(9)}
    def too_large(params, x, y):
        loss = loss_of(params, x, y, False) + sum(params[f"more{i}"].sum() for i in range(9))
        return loss + (step == 3) * (loss.tanh().half() + 60000) * 2  # too much
    gs, loss = grad_and_value(too_large)(params, x, y)
"""
IN_THE_LOSS = """
    if not step: optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    own = dict(net.named_parameters())
    loss = vmap(lambda x, y: loss_of(own, x, y, is_bad))(x, y).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("body", FUNCTIONAL.values(), ids=FUNCTIONAL)
def test_a_bad_gradient_is_followed_into_the_transformed_function(body: str, tmp_path: Path) -> None:
    text = BEGIN.replace("BAD", "3") + body

    found = diagnosed(text, tmp_path)["findings"][0]

    assert (found["severity"], found["step"], found["op"]) == ("error", 3, "aten.div.Tensor")
    assert (found["cause"], found["source"]["line"]) == ("division-by-zero", line_of(text, "# fault"))


def test_a_bad_loss_is_found_behind_many_good_gradients(tmp_path: Path) -> None:
    text = BEGIN.replace("BAD", "9") + MANY + UPDATE

    found = diagnosed(text, tmp_path)["findings"][0]

    assert (found["step"], found["op"], found["cause"]) == (3, "aten.mul.Tensor", "format-overflow")
    assert found["source"]["line"] == line_of(text, "# too much")


def test_vmap_in_the_loss_is_a_part_of_the_step(tmp_path: Path) -> None:
    text = BEGIN.replace("BAD", "3") + IN_THE_LOSS

    run = diagnosed(text, tmp_path)

    found = run["findings"][0]
    assert (found["code"], found["step"], found["op"]) == ("HC102", 3, "aten.div.Tensor")
    assert (found["cause"], found["source"]["line"]) == ("division-by-zero", line_of(text, "# fault"))
    assert run["n_steps"] == 6


@pytest.mark.parametrize("body", FUNCTIONAL.values(), ids=FUNCTIONAL)
def test_without_a_fault_nobody_calls_it_healthy_or_bad(body: str, tmp_path: Path) -> None:
    said = ran(BEGIN.replace("BAD", "-1") + body, tmp_path)

    assert "it computes with torch.func" in said
    assert not any(word in said for word in ("healthy", "error[", "warning["))


def test_a_loss_with_vmap_trains_in_silence(tmp_path: Path) -> None:
    found = diagnosed(BEGIN.replace("BAD", "-1") + IN_THE_LOSS, tmp_path)

    assert (found["status"], found["n_steps"]) == ("healthy", 6)


def test_results_are_the_same_to_the_bit(tmp_path: Path) -> None:
    show = "    print(params['weight'].double().sum().item(), jacrev(lambda x: net(x).sum())(x).sum().item())\n"
    text = BEGIN.replace("BAD", "-1") + FUNCTIONAL["per-sample"] + show
    plain = tmp_path / "plain"
    plain.mkdir()

    watched = ran(text, tmp_path, stream="stdout")

    script = plain / "train.py"
    script.write_text(text, encoding="utf-8")
    alone = warm.run([sys.executable, str(script)], env=os.environ, timeout=120)
    assert (watched, alone.returncode) == (alone.stdout, 0)
    assert len(alone.stdout.splitlines()) == 6
