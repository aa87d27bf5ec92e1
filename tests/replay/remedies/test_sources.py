"""Where a forward is written."""

import functools
import inspect

import torch
from torch import nn

import hypocenter
from hypocenter.replay.cure.patch import forward_source


class Plain(nn.Module):
    def forward(self, x):
        return x


class Decorated(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        return x


def line_of(cls):
    return inspect.getsourcelines(cls)[1] + 1


def test_file_and_line_of_the_class():
    found = forward_source(Plain())

    assert found is not None
    assert (found.file, found.line, found.function) == (__file__, line_of(Plain), "forward")
    assert forward_source(Decorated()).line == line_of(Decorated)


def test_islands_and_wrappers_are_looked_through():
    module = Plain()
    module.forward = functools.wraps(module.forward)(lambda x: x)
    hypocenter.island(module, [""])

    assert forward_source(module).line == line_of(Plain)


def test_code_that_is_in_no_file():
    space = {"nn": nn}
    exec("class Made(nn.Module):\n    def forward(self, x):\n        return x", space)

    assert forward_source(space["Made"]()) is None
