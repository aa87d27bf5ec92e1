"""The burn: right on a device that is well; a wrong value and a result that comes and goes are told apart."""

import pytest
import torch

from hypocenter.examine import arithmetic
from hypocenter.examine.device import own_device


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def burn(budget_s=0.0):
    out = {}
    arithmetic.examine(own_device(0), lambda what: None, out, budget_s)
    return out


def test_a_device_that_is_well_has_nothing_wrong():
    out = burn()

    assert {test["name"] for test in out["tests"]} >= {"matmul", "matmul of integers", "sum", "softmax", "layer norm"}
    assert {test["dtype"] for test in out["tests"]} >= {"float32", "bfloat16"}
    assert all(not test["n_wrong"] and not test["n_unequal"] for test in out["tests"])
    assert all(test["worst"] is None or test["worst"] < 1 for test in out["tests"])


def test_the_same_device_has_the_same_digests():
    first, second = burn(), burn()

    assert [test["digest"] for test in first["tests"]] == [test["digest"] for test in second["tests"]]
    assert first["group"] == second["group"]


def test_the_lowest_bit_of_an_integer_product_is_seen(monkeypatch):
    mm = torch.mm

    def faulty(a, b):
        result = mm(a, b)
        result.view(torch.int32 if result.dtype == torch.float32 else torch.int16)[3, 5] ^= 1
        return result

    monkeypatch.setattr(torch, "mm", faulty)

    out = burn()

    wrong = {(t["name"], t["dtype"]): t for t in out["tests"] if t["n_wrong"]}
    assert ("matmul of integers", "float32") in wrong
    assert wrong["matmul of integers", "float32"]["first"]["index"] == 3 * 128 + 5
    assert not any(t["n_unequal"] for t in out["tests"])


def test_a_result_that_comes_and_goes_is_counted(monkeypatch):
    mm, calls = torch.mm, iter(range(10_000))

    def faulty(a, b):
        result = mm(a, b)
        if next(calls) > 20:
            result[0, 0] += 64
        return result

    monkeypatch.setattr(torch, "mm", faulty)

    out = burn()

    assert not any(t["n_wrong"] for t in out["tests"])
    assert any(t["n_unequal"] for t in out["tests"])


def test_nan_is_wrong(monkeypatch):
    monkeypatch.setattr(
        torch, "softmax", lambda x, dim: x * float("nan") if x.dtype == torch.float32 else x.softmax(dim)
    )

    out = burn()

    test = next(t for t in out["tests"] if t["name"] == "softmax")
    assert test["n_wrong"] == test["n"]
    assert test["worst"] == float("inf")


def test_the_settings_of_torch_are_as_before():
    torch.set_float32_matmul_precision("medium")
    try:
        burn()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
