"""Hyper-parameters that meet a low format: rows of what is given and of what is held."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.detect.update_rows import HYPER, HYPER_ROUNDED
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

torch.set_num_threads(1)


def recorded(out, dtype, change=lambda group: None, n_steps=3, **options):
    model = nn.Linear(4, 4).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, **options)
    change(optimizer.param_groups[0])
    with hypocenter.watch(out=str(out)):
        for _ in range(n_steps):
            model(torch.ones(1, 4, dtype=dtype)).sum().backward()
            optimizer.step()
    return open_run(out)


def numbers(run, port):
    return {r.site: r.summary.sum for r in run.readings(phase="optimizer") if r.port == port}


@pytest.mark.parametrize(
    ("dtype", "options", "expected"),
    [
        (torch.bfloat16, {}, {"betas[1]": 1.0}),
        (torch.float16, {}, {"eps": 0.0}),
        (torch.float16, {"eps": 1e-4, "betas": (0.9, 0.99)}, {}),
        (torch.bfloat16, {"betas": (0.9, 0.95)}, {}),
    ],
)
def test_plain_numbers_in_low_precision_state(tmp_path, dtype, options, expected):
    run = recorded(tmp_path / "run", dtype, **options)

    given, held = numbers(run, HYPER), numbers(run, HYPER_ROUNDED)
    lost = {site: value for site, value in held.items() if value in (0.0, 1.0)}
    assert lost == {f"param_groups[0].{name}": value for name, value in expected.items()}
    assert all(given[site] not in (0.0, 1.0) for site in lost)
    notes = [f for f in diagnose(run).findings if f.code == "HC225"]
    assert [f.severity for f in notes] == ["note"] * len(expected)


def test_a_beta_that_became_a_low_precision_tensor(tmp_path):
    def change(group):
        group["betas"] = (group["betas"][0], torch.tensor(0.999, dtype=torch.bfloat16))

    run = recorded(tmp_path / "run", torch.float32, change, foreach=False)

    found = next(f for f in diagnose(run).findings if f.code == "HC225")
    assert (found.severity, found.site, found.actual) == ("warning", "param_groups[0].betas[1]", 1.0)


def test_float32_state_gives_no_rows(tmp_path):
    run = recorded(tmp_path / "run", torch.float32)

    assert numbers(run, HYPER) == {}


def test_fused_kernels_add_eps_in_float32(tmp_path):
    run = recorded(tmp_path / "run", torch.float16, fused=True)

    assert "param_groups[0].eps" not in numbers(run, HYPER)
