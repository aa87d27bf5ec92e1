"""tap/names.py: the user's names, whatever wraps the model."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from hypocenter.tap.names import NameMap, class_name, strip, unwrap


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)  # a user's own submodule with a wrapper's name
        self.norm = nn.BatchNorm1d(2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.shared = nn.Linear(2, 2)
        self.again = self.shared
        self.head = nn.Linear(2, 2)
        self.head.weight = self.inner.module.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.shared(self.inner.module(x)))


def module_named(package: str, name: str, attribute: str) -> type[nn.Module]:
    """A stand-in for a wrapper class of a package that is not installed here."""

    def init(self: nn.Module, module: nn.Module) -> None:
        nn.Module.__init__(self)
        setattr(self, attribute, module)

    return type(name, (nn.Module,), {"__init__": init, "__module__": f"{package}.somewhere"})


WRAPPERS = {
    "compile": torch.compile,
    "data parallel": nn.DataParallel,
    "checkpoint": checkpoint_wrapper,
    "deepspeed": module_named("deepspeed", "DeepSpeedEngine", "module"),
    "megatron": module_named("megatron", "DistributedDataParallel", "module"),
    "fabric": module_named("lightning", "_FabricModule", "_forward_module"),
    "float16 in ddp": lambda m: module_named("megatron", "DistributedDataParallel", "module")(
        module_named("megatron", "Float16Module", "module")(m)
    ),
}


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_names_are_those_of_the_unwrapped_model(wrapper) -> None:
    plain = Net()
    expected = [name for name, _ in plain.named_parameters()]
    buffers = [name for name, _ in plain.named_buffers()]
    plain.inner = wrapper(plain.inner)
    model = wrapper(plain)

    names = NameMap()
    names.add_root(model)

    assert [name for name, _ in names.parameters()] == expected
    assert [name for name, _ in names.buffers()] == buffers
    assert names.module_name(plain.head) == "head"
    assert names.module_name(model) == names.module_name(plain) == ""
    assert names.module_name(unwrap(plain.inner).module) == "inner.module"
    assert unwrap(model) is plain
    assert [strip(name, model) for name, _ in model.named_parameters()] == expected


def test_a_users_own_submodule_called_module_stays() -> None:
    names, net = NameMap(), Net()
    names.add_root(net)

    assert names.module_name(net.inner.module) == "inner.module"
    assert strip("inner.module.weight", net) == "inner.module.weight"
    assert strip("inner.module.weight") == "inner.module.weight"
    assert strip("_orig_mod.inner._checkpoint_wrapped_module.norm") == "inner.norm"


def test_shared_modules_and_tied_parameters_have_all_their_names() -> None:
    names, net = NameMap(), Net()
    names.add_root(net)

    assert names.module_names(net.shared) == ("shared", "again")
    assert names.param_names(net.shared.bias) == ("shared.bias", "again.bias")
    assert names.param_names(net.head.weight) == ("inner.module.weight", "head.weight")
    assert names.buffer_name(net.inner.norm.running_mean) == "inner.norm.running_mean"


def test_strangers_have_no_name() -> None:
    names = NameMap()
    names.add_root(Net())
    stranger = nn.Linear(1, 1)

    assert names.module_name(stranger) is None
    assert names.module_names(stranger) == ()
    assert names.param_name(stranger.weight) is None
    assert names.buffer_name(torch.ones(1)) is None


def test_what_is_added_swapped_or_deleted_later_is_seen() -> None:
    names, net = NameMap(), Net()
    names.add_root(net)
    before = names.generation
    late = nn.Sequential(nn.Linear(2, 2))

    assert names.module_name(late) is None
    net.late = late
    assert names.module_name(late[0]) == "late.0"
    assert names.generation > before

    late.insert(0, nn.ReLU())  # changes names without any registration hook
    assert names.module_name(late[0]) == "late.0"
    assert names.module_name(late[1]) == "late.1"

    net.head.weight = nn.Parameter(torch.ones(2, 2))
    assert names.param_name(net.head.weight) == "head.weight"
    net.inner.norm.running_mean = torch.ones(2)
    assert names.buffer_name(net.inner.norm.running_mean) == "inner.norm.running_mean"

    del net.late
    assert [name for name, _ in names.parameters()] == [name for name, _ in net.named_parameters()]
    net.half()  # swaps the buffers themselves
    assert names.buffer_name(net.inner.norm.running_var) == "inner.norm.running_var"


def test_modules_made_and_thrown_away_in_a_forward_cost_no_refresh(monkeypatch) -> None:
    names, net = NameMap(), Net()
    names.add_root(net)
    assert names.module_name(net.head) == "head"
    monkeypatch.setattr(names, "_name_all", lambda *_: pytest.fail("named everything anew"))
    before = names.generation

    for _ in range(3):
        assert names.module_name(nn.CrossEntropyLoss()) is None  # registers a buffer
        assert names.module_name(nn.Sequential(nn.Linear(1, 1))) is None
        assert names.module_name(net.head) == "head"

    assert names.generation == before


def test_several_roots_with_parameters_get_prefixes_and_a_loss_module_gets_its_class() -> None:
    names, net, loss = NameMap(), Net(), nn.CrossEntropyLoss()
    names.add_root(net)
    assert names.module_name(net.head) == "head"

    names.add_root(loss)
    assert names.module_name(net.head) == "head"
    assert names.module_name(loss) == "CrossEntropyLoss"

    twin, other = Net(), nn.Linear(1, 1)
    names.add_root(twin)
    names.add_root(other, prefix="critic")
    assert names.module_name(net) == "Net"
    assert names.module_name(net.head) == "Net.head"
    assert names.module_name(twin.head) == "Net#2.head"
    assert names.param_name(other.weight) == "critic.weight"


def test_a_root_wrapped_later_is_the_same_root_and_a_part_of_a_root_is_none() -> None:
    names, net = NameMap(), Net()
    names.add_root(net.inner)
    names.add_root(net)
    names.add_root(net.inner)
    names.add_root(net)
    wrapped = nn.DataParallel(net)
    names.add_root(wrapped)

    assert names.roots() == [wrapped]
    assert names.module_name(net.inner) == "inner"


def test_cycles_and_diamonds_end() -> None:
    names, net = NameMap(), Net()
    net.inner.back = nn.ModuleList()
    net.inner.back.append(net)  # a cycle, as trainers that sit inside their model make
    tip = nn.Linear(1, 1)
    for _ in range(30):  # two to the thirtieth paths
        tip = nn.ModuleList([tip, tip])
    names.add_root(net)
    names.add_root(tip)

    assert names.module_name(net.head) == "Net.head"
    assert len(names.parameters()) == 8 + 2 - 1


def test_nothing_is_kept_alive_and_close_removes_the_hooks() -> None:
    hooks = nn.modules.module._global_module_registration_hooks
    before, names, net = len(hooks), NameMap(), Net()
    names.add_root(net)
    gone = weakref.ref(net)
    assert len(hooks) == before + 1

    del net
    gc.collect()
    names.close()

    assert gone() is None
    assert names.roots() == []
    assert names.parameters() == []
    assert len(hooks) == before


def test_fsdp2s_made_up_class_names_are_taken_off() -> None:
    fsdp_module = type("FSDPModule", (), {})
    swapped = type("FSDPNet", (fsdp_module, Net), {})

    assert class_name(swapped()) == "Net"
    assert class_name(Net()) == "Net"
