"""Operations that are no average, or of tensors without memory of their own, pass unnoted and unharmed."""

from __future__ import annotations

import torch

from hypocenter.tap.self_averages import SelfAverages
from hypocenter.tap.tape import storage_of


def test_a_tensor_that_is_averaged_with_itself_is_noted_until_the_next_update() -> None:
    heard, weight = SelfAverages(), torch.ones(4)

    heard.hear("mul_", (weight, 0.9), {})
    heard.hear("add_", (weight, weight.detach()), {"alpha": 0.1})
    noted = set(heard.storages)
    heard.clear()

    assert (noted, heard.storages) == ({storage_of(weight)}, set())


def test_sparse_tensors_and_odd_arguments_break_nothing() -> None:
    heard, sparse = SelfAverages(), torch.eye(3).to_sparse()

    for name in ("lerp_", "add_", "mul_", "_foreach_lerp_"):
        for args in ((sparse, sparse), (sparse, 2), ([sparse], [sparse, 1]), (None, None)):
            heard.hear(name, args, {"alpha": 0.5})

    assert heard.storages == set()
