"""A diff put in place in the running model: the replay sees what the user would have."""

import difflib
import importlib.util
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.replay.cure.patch import CannotTry, applied, patched

SOURCE = """
import torch
from torch import nn


def double(x):
    return 2 * x


class Net(nn.Module):
    def forward(self, x):
        return double(x)
"""

lines = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n"]), max_size=12)


def diff(before, after):
    return "".join(difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), "a", "b"))


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "patched_example.py"
    path.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("patched_example", path)
    module = sys.modules["patched_example"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.Net(), str(path)
    del sys.modules["patched_example"]


@given(lines, lines)
def test_a_diff_applied_gives_the_text_it_was_made_for(before, after):
    old, new = "".join(before), "".join(after)

    assert applied(old, diff(old, new)) == new


def test_a_changed_and_a_new_method_are_in_place_and_gone_again(net):
    model, file = net
    change = diff(
        SOURCE,
        SOURCE.replace(
            "return double(x)\n", "return self.more(x)\n\n    def more(self, x):\n        return double(x) + 1\n"
        ),
    )

    with patched([model], file, change):
        inside = model(torch.ones(1)).item()

    assert inside == 3.0
    assert model(torch.ones(1)).item() == 2.0
    assert not hasattr(model, "more")


def test_a_change_outside_the_models_classes_cannot_be_tried(net):
    model, file = net

    with pytest.raises(CannotTry), patched([model], file, diff(SOURCE, SOURCE.replace("2 * x", "3 * x"))):
        pass
