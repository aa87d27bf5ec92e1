"""How often a healthy step waits for the device, as bench/syncs counts it, and that what came with others is right."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path

import npu_backend
import pytest
import warm

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    if npu_backend.library() is None:
        pytest.skip("no C++ compiler, or torch without its headers")


def answer(program, *arguments):
    path = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-c", path + textwrap.dedent(program), *arguments]
    done = warm.run(argv, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_no_feature_of_a_step_makes_the_host_wait_more_than_a_plain_one():
    found = answer("""
    import json
    from bench.syncs.count import begin, count
    from bench.syncs.features import FEATURES
    begin()
    made = {name: count(make, "sentinel", 24) for name, make in FEATURES.items()}
    print(json.dumps({name: [each.usual, each.mean, each.from_host] for name, each in made.items()}))
    """)
    both = found.pop("GradScaler, clipping")  # whether the scale is still in them must be known as they are clipped
    assert both[0] <= 2
    plain = found["plain"]
    assert plain[0] == 1
    assert {name: numbers for name, numbers in found.items() if numbers[0] > plain[0] or numbers[2]} == {}
    assert max(mean for _, mean, _ in found.values()) <= plain[1] + 0.1


def test_what_rides_with_the_check_is_what_the_device_holds():
    found = answer("""
    import contextlib, json, math, tempfile
    import npu_backend; npu_backend.begin()
    import hypocenter, torch
    from hypocenter.record.reader import open_run
    from hypocenter.record.schema import READINGS, readings_from
    told = {}
    for unscale in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 8).to("npu")
        rate = torch.tensor(0.5, device="npu")
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
        scaler = torch.amp.GradScaler("npu", init_scale=1024.0, growth_interval=2)
        truth = []
        with tempfile.TemporaryDirectory() as folder:
            with hypocenter.watch(model, optimizer, out=folder + "/run", replay=False, audit="never"):
                for step in range(6):
                    optimizer.zero_grad()
                    truth.append([float(scaler.get_scale()), float(rate)])
                    x = torch.ones(4, 8, device="npu") * (math.inf if step == 3 else 1.0)
                    scaler.scale(model(x).square().mean()).backward()
                    if unscale:
                        scaler.unscale_(optimizer)
                    scaler.step(optimizer), scaler.update(), rate.mul_(0.5)
            run = open_run(folder + "/run")
            rows = list(readings_from(run.table().select(READINGS.names)))
            by_step = {(row.step, row.site): row.summary.absmax for row in rows if row.site in ("lr", "loss_scale")}
            records = [(r.loss_scale, r.lr, r.skipped) for _, r in run.step_records()]
            told[str(unscale)] = [truth, [[by_step[s, "loss_scale"], by_step[s, "lr"]] for s in range(6)], records]
    print(json.dumps(told))
    """)
    for truth, rows, records in found.values():
        assert rows == truth
        assert [record[:2] for record in records] == truth
        assert [record[2] for record in records] == [False, False, False, True, False, False]
        assert len({scale for scale, _ in truth}) > 1


def test_the_gradient_that_was_bad_before_the_clip_is_named_although_nobody_waited_for_it():
    found = answer("""
    import json, tempfile
    import npu_backend; npu_backend.begin()
    import hypocenter, torch
    from hypocenter.diagnose.diagnosis import diagnose
    from hypocenter.record.reader import open_run
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to("npu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    with tempfile.TemporaryDirectory() as folder:
        with hypocenter.watch(model, optimizer, out=folder + "/run", audit="never"):
            for step in range(4):
                optimizer.zero_grad()
                model(torch.ones(4, 8, device="npu")).square().mean().backward()
                if step == 2:
                    model[1].bias.grad[3] = float("nan")
                norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)))
                optimizer.step()
        run = open_run(folder + "/run")
        first = diagnose(run).findings[0]
        records = [(r.grad_norm, r.n_bad_grads) for _, r in run.step_records()]
    print(json.dumps([first.step, first.param, norms[:2], records[:3]]))
    """)
    step, param, norms, records = found
    assert (step, param) == (2, "1.bias")
    assert [norm for norm, _ in records[:2]] == pytest.approx(norms, rel=1e-6)
    assert [n_bad for _, n_bad in records] == [0, 0, 4]
