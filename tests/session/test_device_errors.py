"""A device that gives no more results is told as that, keeps the last words, and holds up no exit."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))
import warm

from hypocenter.config import Config
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run
from hypocenter.session import recording
from hypocenter.session.device_errors import device_error
from hypocenter.session.recording import Session

ASSERT = (
    "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com.\nCUDA kernel "
    "errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (ASSERT, "device"),
        ("CUDA error: an illegal memory access was encountered", "device"),
        ("CUDA error: unspecified launch failure", "device"),
        ("HIP error: an illegal memory access was encountered", "device"),
        ("ACL stream synchronize failed, error code:507018", "device"),
        ("NPU function error: aclrtSynchronizeStream, error code is 507015", "device"),
        ("NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error", "collective"),
        ("NCCL communicator was aborted on rank 3.", "collective"),
        ("HCCL function error: HcclAllReduce, error code is 4", "collective"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", None),
        ("CUDA error: out of memory", None),
        ("CUDA error: invalid argument", None),
        ("CUDA error: no kernel image is available for execution on the device", None),
        ("NPU error, error code is 107002", None),
        ("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", None),
    ],
)
def test_errors_of_devices_are_recognised(text, kind):
    found = device_error(RuntimeError(text))

    assert (found and found.kind) == kind


def test_torch_s_own_classes_and_what_an_error_was_raised_from():
    made = getattr(torch, "AcceleratorError", RuntimeError)(ASSERT)
    outer = ValueError("the step failed")
    outer.__cause__ = made

    found = device_error(outer)

    assert (found.type, found.text) == (type(made).__name__, "CUDA error: device-side assert triggered")
    assert device_error(torch.distributed.DistBackendError("something odd")).kind == "collective"
    assert device_error(torch.OutOfMemoryError("CUDA error: device-side assert triggered, out of memory")) is None
    assert device_error(ValueError("device-side assert")) is None  # no error of torch's


PROGRAM = """
    import sys
    import torch
    from hypocenter.tap.gradients import NormReader

    # From step 3 on every read of the device raises, as after an assert in a kernel of the program's.
    step, words = 0, "CUDA error: device-side assert triggered\\nSearch for `cudaErrorAssert' in the documentation."
    read_norms = NormReader.read

    def read(self, tensors):
        if step >= 3:
            raise RuntimeError(words)
        return read_norms(self, tensors)

    NormReader.read = read
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        loss = model(torch.ones(3, 4)).sum()
        loss.backward()
        optimizer.step()  # here it is noticed
        optimizer.zero_grad()
        if step >= 3 and sys.argv[1] == "dies":
            raise RuntimeError(words)  # what the program's own loss.item() would do
    print("weights", float(model.weight.sum()))
"""


def run(tmp_path: Path, way: str):
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(PROGRAM))
    source = str(Path(__file__).parents[2] / "src")
    done = warm.run(
        [sys.executable, "-m", "hypocenter", "run", "--out", str(tmp_path / "r"), str(program), way],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}, timeout=240,
    )  # fmt: skip
    return done, diagnose(open_run(tmp_path / "r"))


def test_an_assert_first_seen_by_us_is_a_finding_and_training_meets_it_by_itself(tmp_path):
    done, found = run(tmp_path, "goes-on")

    (finding,) = found.findings
    assert (finding.code, finding.step, finding.severity) == ("HC324", 3, "error")
    assert finding.title == "a device error was first seen at step 3"
    assert finding.why[0] == "RuntimeError: CUDA error: device-side assert triggered"
    assert "CUDA_LAUNCH_BLOCKING=1" in finding.why[2]
    assert finding.source.text == "optimizer.step()  # here it is noticed"
    assert "internal error" not in done.stderr
    assert "a device error was first seen at step 3, nothing is recorded from here on" in done.stderr
    assert "weights" in done.stdout  # it went on to its end
    assert found.n_steps == 3


def test_last_words_are_kept_after_a_device_error(tmp_path):
    done, found = run(tmp_path, "dies")

    (finding,) = found.findings
    assert done.returncode == 1
    assert finding.title == "the program died of CUDA error: device-side assert triggered at step 3"
    assert "a device error was first seen at step 3, in Hypocenter's check" in finding.why
    assert "raise RuntimeError(words)" in finding.source.text
    assert "internal error" not in done.stderr


class Stuck:
    """What `torch.npu` would be with a device that never comes to an end."""

    n_asked = 0

    class Event:
        def record(self, stream=None):
            pass

        def query(self):
            Stuck.n_asked += 1
            return False


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A session after two steps, with parameters that claim to be on a device."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters())
    session = Session(Config(replicas="every=1"), tmp_path / "run", owns_run=True)
    session.names.add_root(model)
    session.attach()
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()

    class OnDevice:
        device = torch.device("xpu", 0)

    monkeypatch.setattr(session.names, "parameters", lambda: [("weight", OnDevice())])
    return session


def test_the_exit_does_not_wait_for_a_device_that_is_stuck(trained, monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "xpu", Stuck)
    monkeypatch.setattr(recording, "EXIT_S", 0.2)
    monkeypatch.setattr(
        trained.parts.observers, "at_end", lambda: pytest.fail("an observer reads the device at the end")
    )
    monkeypatch.setattr(trained._boundary, "at_end", lambda: pytest.fail("parameters are read at the end"))

    trained.close()  # for ever, if it waited

    assert Stuck.n_asked > 2
    assert any("had not done its work when the program ended" in line for line in trained.warn.lines)
    assert diagnose(open_run(tmp_path / "run")).n_steps == 2


def test_a_device_that_broke_after_the_last_step_is_told_at_the_end(trained, monkeypatch, tmp_path):
    class Broken(Stuck):
        class Event(Stuck.Event):
            def query(self):
                raise RuntimeError(ASSERT)

    monkeypatch.setattr(torch, "xpu", Broken)

    trained.close()

    (finding,) = diagnose(open_run(tmp_path / "run")).findings
    assert finding.title == "a device error was first seen at step 2"


def test_an_observer_is_not_blamed_for_the_device(tmp_path, monkeypatch):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters())
    session = Session(Config(), tmp_path / "run", owns_run=True)
    session.names.add_root(model)
    session.attach()

    def hear(update):
        raise RuntimeError(ASSERT)

    observers = session.parts.observers
    observers._who_hears("before_update").insert(0, (observers._all[0], hear))
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    hook = sys.excepthook
    session.close()

    assert "step 0" in session.warn.lines[0]
    assert not any("internal error" in line for line in session.warn.lines)
    assert hook is not sys.excepthook  # it was ours until the end
