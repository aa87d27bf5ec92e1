"""Kernels that the dispatcher does not show, as Triton's and those of extensions are: written here through ctypes."""

import ctypes

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

NAN = float("nan")


def launch(out, values):
    """Neither an operator nor a change of the version counter."""
    flat = values.detach().contiguous().numpy().ravel()
    ctypes.memmove(out.data_ptr(), flat.ctypes.data, flat.nbytes)


def doubled(x):
    return torch.from_numpy(x.detach().numpy() * 2)


def poisoned(x):
    values = doubled(x).numpy()
    values[0, 1] = NAN
    return torch.from_numpy(values)


class Kernel(torch.autograd.Function):
    """An elementwise kernel with a wrapper, as Liger's are."""

    make, make_backward = poisoned, doubled

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        n = x.numel()
        launch(out, Kernel.make(x))  # forward
        assert n
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        launch(out, Kernel.make_backward(grad))  # backward
        return out


class ByFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.second(Kernel.apply(self.first(x)) * 0.5)


class Inner(nn.Module):
    def forward(self, x):
        out = torch.zeros(x.shape)
        launch(out, poisoned(x))  # inner
        return out + x


class ByModule(ByFunction):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.second(self.inner(self.first(x)))


class Unwritten(ByFunction):
    def forward(self, x):
        out = torch.empty(4)  # deterministic algorithms fill it with NaN
        return self.second(self.first(x) + out)


class Overwritten(ByFunction):
    def forward(self, x):
        never_read, out = torch.empty(4), torch.empty(x.shape)
        launch(never_read, torch.full((4,), NAN))
        launch(out, torch.full(x.shape, NAN))
        out.copy_(self.first(x))
        return self.second(out)


class OfBadInput(ByFunction):
    """The kernel was given what was not finite: it is not to blame."""

    def forward(self, x):
        h = torch.log(self.first(x) * 0.0 - 1.0)
        return self.second(Kernel.apply(h))


def found(tmp_path, make, **options):
    torch.manual_seed(0)
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with hypocenter.watch(net, optimizer, out=tmp_path / "run", cure="off", **options):
        for _ in range(2):
            net(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return diagnose(open_run(tmp_path / "run")).findings


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    monkeypatch.setattr(Kernel, "make", staticmethod(poisoned))
    monkeypatch.setattr(Kernel, "make_backward", staticmethod(doubled))


@pytest.mark.parametrize(
    ("make", "site", "line"),
    [
        (ByFunction, "", "launch(out, Kernel.make(x))  # forward"),
        (ByModule, "inner", "launch(out, poisoned(x))  # inner"),
    ],
)
def test_the_line_that_ran_it_is_blamed(tmp_path, make, site, line):
    first = found(tmp_path, make)[0]

    assert (first.op, first.site) == ("unseen kernel", site)
    assert first.source.text == line
    assert first.cause not in ("hardware-fault", "kernel-bug")
    told = first.title + " ".join(first.why)
    assert "a kernel that the dispatcher does not show" in told
    assert "before aten." in told


def test_in_backward_too(tmp_path, monkeypatch):
    monkeypatch.setattr(Kernel, "make", staticmethod(doubled))
    monkeypatch.setattr(Kernel, "make_backward", staticmethod(poisoned))

    first = found(tmp_path, ByFunction)[0]

    assert (first.op, first.phase) == ("unseen kernel", "backward")
    assert first.source.text == "launch(out, Kernel.make_backward(grad))  # backward"


def test_what_it_was_given_is_blamed_where_that_was_bad(tmp_path):
    first = found(tmp_path, OfBadInput)[0]

    assert first.op == "aten.log.default"


def test_memory_that_nobody_has_written_to_accuses_no_kernel(tmp_path):
    torch.use_deterministic_algorithms(True)
    try:
        first = found(tmp_path, Unwritten)[0]
    finally:
        torch.use_deterministic_algorithms(False)

    assert first.op == "unwritten memory"
    assert first.source.text.startswith("out = torch.empty(4)")
    assert first.title == "memory that nothing has written to was read, and held NaN"


def test_memory_that_is_never_read_or_written_first_is_silent(tmp_path):
    assert found(tmp_path, Overwritten) == ()
