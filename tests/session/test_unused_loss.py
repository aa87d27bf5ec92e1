"""A loss that the program computes and throws away because it is not finite is told. The whole way."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

from program_text import diagnosed, line_of

PROGRAM = """
import torch
torch.manual_seed(0)
net, other = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], lr=0.01)
for step in range(6):
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    optimizer.zero_grad()
    STEP
"""
SKIPPED = """
    loss = (net(x) - y).pow(2).mean()
    if step in (2, 3): loss = loss * 0 / (loss - loss)  # fault
    if not torch.isfinite(loss): continue
    loss.backward()
    optimizer.step()
"""
SUMMED = """
    for part in range(3):
        loss = (net(x) - y).pow(2).mean()
        if step == 2 and part == 1: loss = loss * 0 / (loss - loss)  # fault
        if loss == loss: loss.backward()
    optimizer.step()
"""
HARMLESS = {
    "perplexity": """
    loss = (net(x) - y).pow(2).mean()
    perplexity = (loss * 1000).exp()
    loss.backward()
    optimizer.step()
""",
    "two-losses": """
    first, second = (net(x) - y).pow(2).mean(), (other(x) - y).pow(2).mean()
    first.backward()
    second.backward()
    optimizer.step()
""",
    "summed": """
    first, second = (net(x) - y).pow(2).mean(), (other(x) - y).pow(2).mean()
    (first + second).backward()
    optimizer.step()
""",
    "evaluated": """
    with torch.no_grad(): print(((net(x) - y).pow(2).mean() * 1e9).exp())
    (net(x) - y).pow(2).mean().backward()
    optimizer.step()
""",
    "nobody-looks": """
    ((other(x) - y).pow(2).mean() * 1e30).exp()
    (net(x) - y).pow(2).mean().backward()
    optimizer.step()
""",
    "thrown-away-but-finite": """
    (other(x) - y).pow(2).mean()
    (net(x) - y).pow(2).mean().backward()
    optimizer.step()
""",
}


ITEM = SKIPPED.replace("not torch.isfinite(loss)", "loss.item() != loss.item()")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "step"), [(SKIPPED, 2), (ITEM, 2), (SUMMED, 2)], ids=["skipped", "skipped-by-number", "summed"]
)
def test_a_bad_loss_that_is_thrown_away_is_told(body: str, step: int, tmp_path: Path) -> None:
    text = PROGRAM.replace("    STEP", body)

    run = diagnosed(text, tmp_path)

    found = run["findings"][0]
    assert run["status"] == "findings"
    assert (found["code"], found["severity"], found["step"]) == ("HC102", "warning", step)
    assert (found["op"], found["cause"]) == ("aten.div.Tensor", "division-by-zero")
    assert found["source"]["line"] == line_of(text, "# fault")
    assert any("went on without it" in line for line in found["why"])


@pytest.mark.slow
@pytest.mark.parametrize("body", HARMLESS.values(), ids=HARMLESS)
def test_numbers_beside_the_loss_are_nobody_s_business(body: str, tmp_path: Path) -> None:
    found = diagnosed(PROGRAM.replace("    STEP", body), tmp_path)

    assert (found["status"], found["n_steps"]) == ("healthy", 6)
