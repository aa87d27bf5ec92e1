"""detect/bookkeeping.py: what Hypocenter writes for itself is known by phase, site and port, in one place."""

from __future__ import annotations

import pyarrow as pa
import pytest

from hypocenter.detect import misuse
from hypocenter.detect.bookkeeping import holds_values, is_bookkeeping


@pytest.mark.parametrize(
    ("phase", "site", "port"),
    [
        ("optimizer", misuse.HIDDEN_LOSS, "value"),
        ("scaler", misuse.APPLIED, "value"),
        ("data", "rng.cpu", "state"),
        ("comm", "sdc", "ops"),
        ("comm", "agreement", "value"),
        ("param", "replicas.rewritten", "value"),
        ("param", "layers.0.weight", "replica"),
        ("grad", "layers.0.weight", "replica.grad"),
        ("optimizer", "layers.0.weight", "update_lost"),
        ("optimizer", "updates", "stuck"),
        ("optimizer", "micro-batches", "not_added"),
        ("optimizer", "label_weight", "value"),
    ],
)
def test_what_hypocenter_measured_is_bookkeeping(phase: str, site: str, port: str) -> None:
    assert is_bookkeeping(row(phase, site, port)).to_pylist() == [True]


@pytest.mark.parametrize(
    ("phase", "site", "port"),
    [
        ("loss", "loss", "value"),
        ("grad", "grad_norm", "value"),
        ("optimizer", "lr", "value"),
        ("scaler", "loss_scale", "value"),
        ("data", "batch.input_ids", "digest"),
        # modules and parameters of the program that are called like rows of ours
        ("forward", "sdc", "out[0]"),
        ("forward", "misuse.head", "out[0]"),
        ("param", "misuse.head.weight", "value"),
        ("grad", "updates.weight", "grad"),
        ("param", "replicas.0.weight", "value"),
        ("backward", "rng.embed", "grad_in[0]"),
        ("optimizer", "sdc.weight", "exp_avg"),
    ],
)
def test_values_of_the_program_are_not(phase: str, site: str, port: str) -> None:
    assert is_bookkeeping(row(phase, site, port)).to_pylist() == [False]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, False),
        ({"sumsq": 4.0}, True),  # a norm beside it
        ({"n_hist": 3}, True),
        ({"absmax": 1.0}, True),
        ({"digest": None}, True),  # no digest: a norm of exactly 0
    ],
)
def test_a_digest_alone_says_nothing_of_values(values: dict[str, object], expected: bool) -> None:
    fields = {"digest": 1, "n_hist": 0, "absmax": 0.0, "sumsq": 0.0, **values}
    rows = pa.table(
        {name: pa.array([value], pa.int64() if name == "digest" else None) for name, value in fields.items()}
    )

    assert holds_values(rows).to_pylist() == [expected]


def row(phase: str, site: str, port: str) -> pa.Table:
    return pa.table({"phase": [phase], "site": [site], "port": [port]})
