"""What needs no torch: variables of the environment, and MindSpore's switch."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hypocenter import deterministic
from hypocenter.config import resolve
from hypocenter.errors import ConfigError


def test_variables_that_are_not_set_are_set() -> None:
    found = deterministic.environment({}, 7)

    assert found["PYTHONHASHSEED"] == "7"
    assert found["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert (found["HCCL_DETERMINISTIC"], found["ASCEND_LAUNCH_BLOCKING"]) == ("true", "1")


def test_values_of_the_users_that_serve_as_well_are_left() -> None:
    mine = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "PYTHONHASHSEED": "3", "NCCL_ALGO": "Tree"}

    assert not mine.keys() & deterministic.environment(mine, 7).keys()


def test_values_that_do_not_serve_are_replaced() -> None:
    mine = {"CUBLAS_WORKSPACE_CONFIG": ":0:0", "PYTHONHASHSEED": "random", "HCCL_DETERMINISTIC": "false"}

    found = deterministic.environment(mine, 7)

    assert {name: found[name] for name in mine} == {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONHASHSEED": "7", "HCCL_DETERMINISTIC": "true",
    }  # fmt: skip


@pytest.mark.parametrize("seed", [-1, 1 << 32])
def test_a_seed_that_numpy_cannot_take_is_refused(seed: int) -> None:
    with pytest.raises(ConfigError, match="a seed cannot be"):
        resolve(code={"seed": seed})


def test_mindspore_is_switched_by_the_newer_function_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_newer in (True, False):
        calls: list[Any] = []
        fake: dict[str, Any] = {
            "set_seed": lambda seed, calls=calls: calls.append(("seed", seed)),
            "set_context": lambda calls=calls, **options: calls.append(options),
        }
        if has_newer:
            fake["set_deterministic"] = lambda on, calls=calls: calls.append(("deterministic", on))
        monkeypatch.setitem(sys.modules, "mindspore", SimpleNamespace(**fake))  # type: ignore[arg-type]

        deterministic.switch_mindspore(7, deterministic=True)

        assert calls == [("seed", 7), ("deterministic", True) if has_newer else {"deterministic": "ON"}]


def test_what_is_seeded_at_its_import_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deterministic, "seeded", set())
    state = random.getstate()
    try:
        deterministic.at_import("random", 7, deterministic=False)

        assert random.random() == random.Random(7).random()
        assert deterministic.seeded == {"random"}
    finally:
        random.setstate(state)
