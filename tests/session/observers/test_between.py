"""What an optimizer holds no more is not missed: a head that the program has put another one in the place of."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from tests.session.observers.test_laws import findings


@pytest.mark.parametrize(("is_replaced", "codes"), [(True, []), (False, ["HC231"])])
def test_state_of_a_parameter_that_is_replaced_may_go(is_replaced: bool, codes: list[str], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"trunk": nn.Linear(6, 8), "head": nn.Linear(8, 2)})
    groups = [{"params": list(part.parameters())} for part in (model["trunk"], model["head"])]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for step in range(24):
            if step == 16:
                old = model["head"]
                for parameter in old.parameters():
                    optimizer.state.pop(parameter)
                if is_replaced:
                    model["head"] = nn.Linear(8, 3)
                    optimizer.param_groups[1]["params"] = list(model["head"].parameters())
            optimizer.zero_grad()
            model["head"](model["trunk"](torch.randn(8, 6)).relu()).square().mean().backward()
            optimizer.step()

    assert [each.code for each in findings(tmp_path) if each.severity != "note"] == codes
