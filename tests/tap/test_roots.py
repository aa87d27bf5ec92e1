"""A watched module can be copied and pickled like any other: our hook does not go with the copy."""

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.overrides import _len_torch_function_stack

from hypocenter.tap.roots import RootTap
from hypocenter.tap.tape import Tape
from hypocenter.tap.user_code import UserCode


class Unpicklable(Tape):
    """A tape that cannot be copied, as a session's cannot."""

    def __reduce__(self):
        raise TypeError("cannot be pickled")


def watched_model():
    tape = Unpicklable(1 << 20)
    tap = RootTap(tape, on_root=lambda _: None, on_begin=lambda _: None, fail=print)
    undo = tap.attach()
    model = nn.Sequential(nn.Linear(2, 2))
    model(torch.ones(1, 2))
    return model, tape, undo


def test_a_copy_is_not_watched_by_the_original_hook():
    model, tape, undo = watched_model()

    average = copy.deepcopy(model)

    average(torch.ones(1, 2))
    undo()
    assert [event.module for event in tape.events if event.module is not None] == [model, average]
    assert torch.equal(average(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_a_pickled_module_loads_and_runs():
    model, _, undo = watched_model()
    file = io.BytesIO()

    torch.save(model, file)

    undo()
    file.seek(0)
    assert b"hypocenter" not in file.getvalue()
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_after_backward_no_mode_stays_in_the_way_of_what_follows():
    n_before = _len_torch_function_stack()
    tape = Tape(1 << 20)
    tap = RootTap(tape, on_root=lambda _: None, on_begin=lambda _: None, fail=print)
    undo, backward = tap.attach(), torch.autograd.backward

    def suspended(*args: object, **kwargs: object) -> None:
        tap.suspend()
        backward(*args, **kwargs)

    torch.autograd.backward = suspended
    try:
        nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
        tap.begin_step()
        tap.suspend_between()
    finally:
        torch.autograd.backward = backward
        undo()

    assert _len_torch_function_stack() == n_before


def test_a_mode_that_still_listens_stays():
    n_before = _len_torch_function_stack()
    tap = RootTap(Tape(1 << 20), on_root=lambda _: None, on_begin=lambda _: None, fail=print)
    undo = tap.attach()

    nn.Linear(2, 2)(torch.ones(1, 2))
    tap.suspend_between()

    n_modes = _len_torch_function_stack()
    undo()
    assert n_modes == n_before + 1


def test_no_module_carries_a_hook_inside_its_call_or_outside_and_each_call_is_heard():
    tape = Tape(1 << 20)
    tap = RootTap(tape, on_root=lambda _: None, on_begin=lambda _: None, fail=print)
    seen: list[object] = []

    class Inner(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            seen.append(
                (len(module_hooks._global_forward_pre_hooks), len(model._forward_hooks), len(self._forward_hooks))
            )
            return super().forward(input)

    n_others, undo, model = len(module_hooks._global_forward_pre_hooks), tap.attach(), nn.Sequential(Inner(2, 2))
    x = torch.ones(1, 2)
    for _ in range(2):
        model(x)
    undo()

    assert seen == [(n_others, 0, 0)] * 2
    assert len(tape.events) == 2


def test_afterwards_a_modules_call_is_the_code_that_it_was():
    before = nn.Module._wrapped_call_impl.__code__
    model, _, undo = watched_model()
    during = nn.Module._wrapped_call_impl.__code__

    undo()

    assert nn.Module._wrapped_call_impl.__code__ is before
    assert during is not before
    assert torch.equal(model(torch.zeros(1, 2)), model[0].bias[None])


def test_a_module_that_is_gone_is_forgotten():
    model, tape, undo = watched_model()
    gone = weakref.ref(model)

    tape.clear()
    del model
    gc.collect()

    undo()
    assert gone() is None


def test_a_call_that_an_interrupt_ends_is_over():
    class Interrupted(nn.Module):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    tape = Tape(1 << 20)
    tap = RootTap(tape, on_root=lambda _: None, on_begin=lambda _: None, fail=print)
    undo = tap.attach()

    with pytest.raises(KeyboardInterrupt):
        Interrupted()(torch.ones(1, 2))

    assert not tap.is_inside
    undo()


def test_zeroing_gradients_is_no_operation_and_what_surrounds_it_is(monkeypatch):
    seen, original = [], UserCode.__torch_function__

    def noting(self, func, *given):
        seen.append(func.__name__)
        return original(self, func, *given)

    monkeypatch.setattr(UserCode, "__torch_function__", noting)
    tap = RootTap(Tape(1 << 20), on_root=lambda _: None, on_begin=lambda _: None, fail=print)
    undo = tap.attach()
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    change = torch.ones(2) * 3
    data = parameter.data
    for each in (optimizer, nn.ParameterList([parameter])):
        parameter.grad = torch.ones(2)
        seen.clear()
        each.zero_grad()
        assert seen == []
    data.add_(change)
    undo()

    assert seen == ["add_"]
    assert tap.prelude.events == []  # it is known as an update by hand: what came before was no preparation of a batch


def test_whether_the_program_reads_parameters_is_noted_once_it_trains():
    tap = RootTap(Tape(1 << 20), on_root=lambda _: None, on_begin=lambda _: None, fail=print)
    undo, model = tap.attach(), nn.Linear(2, 2)
    model.weight.detach().clone()  # what is made before it trains is found where it lies
    tap.user_code.has_trained = True
    plain = model(torch.ones(1, 2)).square().mean()
    model.zero_grad()
    sum(p.numel() for p in model.parameters() if p.grad is None)
    before = tap.reads_parameters()

    average = {name: p.detach().clone() for name, p in model.named_parameters()}

    after = tap.reads_parameters()
    undo()
    assert (before, after, len(average), plain.dim()) == (False, True, 2, 0)


@pytest.mark.parametrize("function", [torch.matmul, torch.Tensor.cumsum], ids=["a product", "a sum in turn"])
def test_only_what_settings_do_not_touch_is_noted_without_them(function):
    tape = Tape(1 << 20)
    tap = RootTap(tape, on_root=lambda _: None, on_begin=lambda _: None, fail=print)
    undo, model = tap.attach(), nn.Linear(2, 2)
    output = model(torch.ones(2, 2)) * 2.0

    function(output, output if function is torch.matmul else 0).sum()

    undo()
    assert [event.numerics is None for event in tape.events] == [False, True, False, True]
