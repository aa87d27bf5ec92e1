"""A process that was started again counts its steps from its checkpoint."""

import torch

from hypocenter.nouns import Reading
from hypocenter.session.resumption import Resumption
from hypocenter.tap.clock import Clock


def trained(n_steps, kind=torch.optim.AdamW):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = kind([parameter], lr=0.1)
    for _ in range(n_steps):
        parameter.grad = torch.ones(2)
        optimizer.step()
    return optimizer


def row(step=0):
    return Reading(step=step, microbatch=0, phase="forward", site="", port="out[0]", order=0)


def test_a_later_attempt_goes_on_where_its_optimizer_is():
    clock, optimizer, said = Clock(), trained(5), []
    resumption = Resumption(clock, said.append, attempt=1)

    first = resumption.before_update(optimizer, [row()])
    step = clock.begin_update(id(optimizer))
    again = resumption.before_update(optimizer, [row(step + 1)])

    assert (first[0].step, step, again[0].step) == (5, 5, 6)
    assert said == []


def test_the_first_attempt_counts_from_0_whatever_it_loads():
    clock, optimizer = Clock(), trained(5)

    assert Resumption(clock, print, attempt=0).before_update(optimizer, [row()])[0].step == 0
    assert clock.begin_update(id(optimizer)) == 0


def test_an_optimizer_that_counts_nothing_is_said_once():
    clock, said = Clock(), []
    resumption = Resumption(clock, said.append, attempt=2)

    for _ in range(2):
        resumption.before_update(trained(3, torch.optim.SGD), [])

    assert clock.step == 0
    (line,) = said
    assert "attempt 2 counts its steps from 0" in line
