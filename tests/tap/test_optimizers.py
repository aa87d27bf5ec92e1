"""tap.optimizers: every optimizer is known from when it is made, and none is kept."""

import gc
import weakref

import torch

import hypocenter
from hypocenter.record.reader import open_run
from hypocenter.tap.optimizers import Optimizers


def sgd():
    return torch.optim.SGD([torch.ones(1, requires_grad=True)])


def test_those_made_before_and_after_are_known():
    before = sgd()
    optimizers, told = Optimizers(), []
    undo = optimizers.attach(lambda: told.append(1))

    after = sgd()
    undo()
    later = sgd()

    assert {id(before), id(after)} <= {id(each) for each in optimizers.all()}
    assert (told, after.param_groups[0]["lr"]) == ([1], later.param_groups[0]["lr"])


class Comparable(torch.optim.SGD):
    """Without a hash, as every class with an `__eq__` of its own."""

    def __eq__(self, other):
        return self.defaults == other.defaults


def test_one_without_a_hash_is_known_and_steps_as_always(tmp_path):
    model = torch.nn.Linear(2, 1)
    with hypocenter.watch(out=str(tmp_path / "run")):
        optimizers = [Comparable(model.parameters(), 0.1), torch.optim.SGD(model.parameters(), 0.1)]
        for _ in range(3):
            model(torch.ones(1, 2)).pow(2).sum().backward()
            for optimizer in optimizers:
                optimizer.step()

    assert len(open_run(tmp_path / "run").step_records()) == 6
    assert not any("training goes on" in line for line in open_run(tmp_path / "run").run.warnings)


def test_none_is_kept():
    optimizers = Optimizers()
    undo = optimizers.attach(lambda: None)
    made = sgd()
    ref = weakref.ref(made)
    optimizers.all()

    del made
    gc.collect()
    undo()

    assert ref() is None
