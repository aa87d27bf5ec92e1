"""The settings that choose kernels: captured, and entered again."""

import sys
from types import ModuleType

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from hypocenter.tap.numerics import capture_numerics, numerics_entered


def everything():
    return capture_numerics().values


def switched(name, value):
    owner = torch.backends
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, last, value)


OTHERS = [
    lambda: torch.set_float32_matmul_precision("medium"),
    lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    lambda: switched("cudnn.benchmark", True),
    lambda: switched("cudnn.deterministic", True),
    lambda: switched("cudnn.enabled", False),
    lambda: switched("cuda.matmul.allow_bf16_reduced_precision_reduction", False),
    lambda: switched("cuda.matmul.allow_fp16_accumulation", True),
    lambda: torch.backends.cuda.enable_flash_sdp(False),
    lambda: torch.backends.cuda.enable_math_sdp(False),
]


@pytest.mark.parametrize("change", OTHERS, ids=range(len(OTHERS)))
def test_a_changed_setting_is_entered_again_and_left(change):
    plain = capture_numerics()
    change()
    changed = capture_numerics()
    assert changed.values != plain.values

    with numerics_entered(plain):
        assert everything() == plain.values
    assert everything() == changed.values
    restore(plain)
    with numerics_entered(changed):
        assert everything() == changed.values
    assert everything() == plain.values


def restore(plain):
    from hypocenter.tap import numerics

    numerics._put(plain)


@pytest.fixture(autouse=True)
def as_before():
    plain = capture_numerics()
    yield
    restore(plain)


def test_the_kernel_of_attention_is_that_of_the_block():
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION], set_priority=True):
        inside = capture_numerics()

    with numerics_entered(inside):
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert torch._C._get_sdp_priority_order()[0] == int(SDPBackend.MATH)
    assert torch.backends.cuda.flash_sdp_enabled()


def test_equal_settings_are_one_object():
    assert capture_numerics() is capture_numerics()


@pytest.mark.skipif(not hasattr(torch._C, "_get_fp32_precision_getter"), reason="torch 2.9 and later")
def test_names_that_contradict_each_other_stop_nothing():
    torch.set_float32_matmul_precision("high")
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    odd = capture_numerics()
    restore(odd)
    torch.set_float32_matmul_precision("highest")

    with numerics_entered(odd):
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"


@pytest.mark.parametrize("name", ["transformer_engine.pytorch.fp8", "transformer_engine.pytorch.quantization"])
def test_fp8_autocast_of_transformer_engine_is_seen(monkeypatch, name):
    class FP8GlobalStateManager:
        is_on = False

        @classmethod
        def is_fp8_enabled(cls):
            return cls.is_on

    module = ModuleType(name)
    module.FP8GlobalStateManager = FP8GlobalStateManager
    monkeypatch.setitem(sys.modules, name, module)

    assert not capture_numerics().is_fp8
    FP8GlobalStateManager.is_on = True
    assert capture_numerics().is_fp8
