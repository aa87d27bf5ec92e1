"""A watched module can be copied and pickled like any other: our hook does not go with the copy."""

import copy
import io

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.overrides import _len_torch_function_stack

from hypocenter.tap.roots import RootTap
from hypocenter.tap.tape import Tape


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
        tap.suspend_loss_mode()
        backward(*args, **kwargs)

    torch.autograd.backward = suspended
    try:
        nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
        tap.drop_idle_loss_mode()
    finally:
        torch.autograd.backward = backward
        undo()

    assert _len_torch_function_stack() == n_before


def test_a_mode_that_still_listens_stays():
    n_before = _len_torch_function_stack()
    tap = RootTap(Tape(1 << 20), on_root=lambda _: None, on_begin=lambda _: None, fail=print)
    undo = tap.attach()

    nn.Linear(2, 2)(torch.ones(1, 2))
    tap.drop_idle_loss_mode()

    n_modes = _len_torch_function_stack()
    undo()
    assert n_modes == n_before + 1


def test_inside_an_outermost_module_nothing_of_ours_is_called_and_it_listens_again_afterwards():
    tape, hooks = Tape(1 << 20), module_hooks._global_forward_pre_hooks
    tap = RootTap(tape, on_root=lambda _: None, on_begin=lambda _: None, fail=print)
    seen: list[int] = []

    class Inner(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            seen.append(len(hooks))
            return super().forward(input)

    n_others, undo, model = len(hooks), tap.attach(), nn.Sequential(Inner(2, 2))
    n_attached, x = len(hooks), torch.ones(1, 2)
    for _ in range(2):
        model(x)
    n_after = len(hooks)
    undo()

    assert (n_attached, n_after, len(hooks)) == (n_others + 1, n_others + 1, n_others)
    assert n_others or seen == [0, 0]
    assert len(tape.events) == 2
