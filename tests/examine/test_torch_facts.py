"""What torch and DeepSpeed say of themselves, as plain data; one that cannot be imported is a fact too."""

from __future__ import annotations

import importlib
import json
import sys
import types

import pytest
import torch

from hypocenter.examine import deepspeed_facts, torch_facts

MAPS = """\
7f00-7f01 r-xp 00000000 08:01 1 /opt/venv/lib/python3.11/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12
7f01-7f02 r-xp 00000000 08:01 2 /usr/local/cuda-12.1/lib64/libcublasLt.so.12.1.0.26
7f02-7f03 r-xp 00000000 08:01 3 /usr/lib/libcudart-d0da41ae.so.11.0
7f03-7f04 r-xp 00000000 08:01 4 /usr/lib/x86_64-linux-gnu/libc.so.6
7f04-7f05 r-xp 00000000 08:01 5 /usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5
"""


def test_facts_of_this_torch_are_plain_and_change_nothing() -> None:
    before = (torch.get_num_threads(), torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled())

    found = torch_facts.facts()

    assert json.loads(json.dumps(found)) == found
    assert (found["status"], found["version"], found["cuda"]) == ("imported", torch.__version__, torch.version.cuda)
    assert found["switches"]["threads"] == torch.get_num_threads()
    assert found["switches"]["cudnn.allow_tf32"] is torch.backends.cudnn.allow_tf32
    after = (torch.get_num_threads(), torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled())
    assert after == before


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "missing"),
        (ModuleNotFoundError("No module named 'typing_extensions'", name="typing_extensions"), "failed"),
        (OSError("libcudnn.so.9: cannot open shared object file"), "failed"),
    ],
)
def test_a_torch_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, error: Exception, status: str) -> None:
    def fails(name: str) -> object:
        raise error

    monkeypatch.setattr(importlib, "import_module", fails)

    found = torch_facts.facts()

    assert found["status"] == status
    assert str(error) in found["error"]


@pytest.mark.parametrize(
    ("number", "version"), [(90100, "9.1.0"), (91002, "9.10.2"), (8902, "8.9.2"), (None, ""), (0, "")]
)
def test_version_of_cudnn(number: int | None, version: str) -> None:
    assert torch_facts._dotted(number) == version


def test_libraries_that_are_loaded() -> None:
    assert [path.rsplit("/", 1)[1] for path in torch_facts._LIBRARY.findall(MAPS)] == [
        "libcudart.so.12", "libcublasLt.so.12.1.0.26", "libcudart-d0da41ae.so.11.0", "libnccl.so.2.21.5",
    ]  # fmt: skip


class Builder:
    """An operator's builder as DeepSpeed has them."""

    BUILD_VAR = "DS_BUILD_CPU_ADAM"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def is_compatible(self, verbose: bool) -> bool:
        if isinstance(self.answer, Exception):
            raise self.answer
        print("please install the libaio-dev package" if not self.answer else "")
        return bool(self.answer)


def test_operators_of_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        "deepspeed": {"__version__": "0.16.4"},
        "deepspeed.accelerator": {"get_accelerator": lambda: types.SimpleNamespace(_name="cuda")},
        "deepspeed.git_version_info": {"installed_ops": {"utils": True}},
        "deepspeed.ops": {}, "deepspeed.ops.op_builder": {},
        "deepspeed.ops.op_builder.all_ops": {
            "ALL_OPS": {
                "utils": Builder(True), "async_io": Builder(False),
                "fused_adam": Builder(RuntimeError("no CUDA_HOME\nset")),
                "deepspeed_not_implemented": Builder(True),
            }
        },
    }  # fmt: skip
    for name, attributes in modules.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)

    found = deepspeed_facts.facts()

    assert (found["status"], found["version"], found["accelerator"]) == ("imported", "0.16.4", "cuda")
    assert {name: (op["built"], op["compatible"], op["why"]) for name, op in found["ops"].items()} == {
        "utils": (True, True, ""),
        "async_io": (False, False, "please install the libaio-dev package"),
        "fused_adam": (False, False, "no CUDA_HOME"),
    }


def test_a_deepspeed_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)

    assert deepspeed_facts.facts()["status"] == "failed"


def test_switches_alone_wake_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("a device was asked for"))

    found = torch_facts.facts(with_devices=False)

    assert set(found) == {"status", "version", "cuda", "hip", "switches"}
