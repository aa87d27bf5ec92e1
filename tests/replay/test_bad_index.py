"""Which index is out of range: found by trying, of any operator; and never where another thing is to blame."""

from __future__ import annotations

import os
import runpy
import sys

import pytest
import torch
import warm
from torch.nn import functional

from hypocenter.replay.bad_index import bad_index
from hypocenter.replay.failed_call import FailedCall, failed_call

TABLE = torch.randn(64, 8)
INDEX = torch.tensor([[1, 2, 3], [4, 70, 5]])


def call(func, *args, **kwargs) -> FailedCall:
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        func(*args, **kwargs)
    return FailedCall(name=getattr(func, "__name__", "?"), func=func, args=args, kwargs=kwargs)


@pytest.mark.parametrize(
    ("made", "values", "at", "size"),
    [
        (call(functional.embedding, INDEX, TABLE), (70,), (1, 1), 64),
        (call(functional.embedding, -INDEX, TABLE), (-70, -5, -4, -3, -2, -1), (1, 1), 64),
        (call(torch.index_select, TABLE, 0, torch.tensor([3, 64])), (64,), (1,), 64),
        (call(torch.index_select, TABLE, 1, torch.tensor([3, 8, 12])), (12, 8), (2,), 8),
        (call(torch.gather, TABLE, 1, torch.full((64, 1), 9)), (9,), (0, 0), 8),
        (call(TABLE.scatter, 1, torch.tensor([[0, 11]]), 1.0), (11,), (0, 1), None),
        (call(functional.cross_entropy, torch.randn(4, 10), torch.tensor([1, -100, 9, 12])), (12,), (3,), 10),
        (call(functional.cross_entropy, torch.randn(4, 10), torch.tensor([1, -7, 9, 2])), (-7,), (1,), 10),
        (call(functional.one_hot, torch.tensor([1, 5]), 4), (5,), (1,), None),
        (call(torch.ops.aten.index.Tensor, TABLE, [None, torch.tensor([0, -1, 11])]), (11,), (2,), 8),
        (call(torch.ops.aten.index.Tensor, TABLE, [torch.tensor([-64, -65])]), (-65,), (1,), 64),
    ],
)  # fmt: skip
def test_the_index_its_place_and_the_length_of_the_table(made, values, at, size):
    before = TABLE.clone()

    found = bad_index(made)

    assert found is not None
    assert (found.values[: len(values)], found.at[0]) == (values, at)
    assert size is None or found.size == size
    assert torch.equal(TABLE, before)


@pytest.mark.parametrize(
    "made",
    [
        call(torch.mm, TABLE, TABLE),
        call(functional.embedding, INDEX.float(), TABLE),
        call(functional.cross_entropy, torch.randn(4, 10), torch.tensor([1, 2, 3])),
        call(torch.cat, [TABLE, torch.zeros(3, 3)]),
    ],
)
def test_what_no_index_mends_has_no_bad_index(made):
    assert bad_index(made) is None


def raised(act) -> BaseException:
    try:
        act()
    except Exception as error:
        return error
    raise AssertionError


def test_the_operator_is_found_in_a_traceback_through_modules_and_functions():
    layer = torch.nn.Embedding(64, 8)

    found = failed_call(raised(lambda: layer(INDEX)), may_call=lambda _: True)

    assert found is not None
    assert found.name == "aten.embedding.default"


def test_a_modules_own_code_is_run_again_only_where_that_is_allowed():
    calls = []

    class Model(torch.nn.Module):
        def forward(self, x):
            calls.append(1)
            print("forward")
            return x.gather(1, torch.full((64, 1), 9))

    error = raised(lambda: Model()(TABLE))

    assert failed_call(error, may_call=lambda _: False) is None
    assert len(calls) == 1
    found = failed_call(error, may_call=lambda _: True)
    assert found is not None
    assert (found.name, len(calls)) == ("aten.gather.default", 2)


def test_what_is_printed_when_it_is_done_again_is_not_heard(capsys):
    class Model(torch.nn.Module):
        def forward(self, x):
            print("forward")
            return x.gather(1, torch.full((64, 1), 9))

    failed_call(raised(lambda: Model()(TABLE)), may_call=lambda _: True)

    assert capsys.readouterr().out == "forward\n"


def test_an_exception_of_the_programs_own_has_no_operator():
    class Model(torch.nn.Module):
        def forward(self, x):
            raise ValueError("no")

    assert failed_call(raised(lambda: Model()(TABLE)), may_call=lambda _: True) is None


def counting(folder):
    """A program that counts in a file how often it has begun, and then breaks."""
    program, count = folder / "broken.py", folder / "count"
    text = f"""
import torch
with open({str(count)!r}, "a") as file:
    file.write("begun ")
raise ValueError("no")
"""
    program.write_text(text, encoding="utf-8")
    return program, count


def test_a_program_is_never_run_again(tmp_path):
    program, count = counting(tmp_path)

    error = raised(lambda: runpy.run_path(str(program), run_name="__main__"))

    assert failed_call(error, may_call=lambda _: True) is None
    assert count.read_text() == "begun "


def test_a_module_that_is_run_as_the_program_is_not_either(tmp_path):
    _, count = counting(tmp_path)
    command = [sys.executable, "-m", "hypocenter", "run", "--out", str(tmp_path / "run"), "-m", "broken"]

    warm.run(command, env=os.environ, cwd=tmp_path, timeout=300)

    assert count.read_text() == "begun "


def test_a_function_of_torch_that_calls_the_program_is_not_called_again():
    calls = []

    def own(gradient):
        calls.append(1)
        raise ValueError("no")

    x = torch.ones(3, requires_grad=True)
    x.register_hook(own)
    error = raised(lambda: torch.autograd.backward(x.sum()))

    assert failed_call(error, may_call=lambda _: True) is None
    assert len(calls) == 1


def test_another_exception_the_second_time_says_nothing():
    class Model(torch.nn.Module):
        n = 0

        def forward(self, x):
            self.n += 1
            return x.gather(1, torch.full((64, 1), 9 + self.n)) if self.n == 1 else x

    assert failed_call(raised(lambda: Model()(TABLE)), may_call=lambda _: True) is None
