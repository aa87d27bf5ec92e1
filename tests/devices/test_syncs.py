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
MOVE_TWICE = ("two optimizers", "two optimizers, both", "in backward")
MIXED = ("plain", "both, accumulation", "two optimizers, both", "in backward")


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


@pytest.mark.slow
@pytest.mark.parametrize("names", [MIXED, ()], ids=["mixed", "all"])
def test_no_feature_of_a_step_makes_the_host_wait_more_than_a_plain_one(names):
    program = """
    import json, sys
    from bench.syncs.count import begin, count
    from bench.syncs.features import FEATURES
    begin()
    made = {name: count(FEATURES[name], "sentinel", 24) for name in sys.argv[1:] or FEATURES}
    print(json.dumps({name: [each.usual, each.allowed, each.mean, each.from_host] for name, each in made.items()}))
    """
    found = answer(program, *names)
    mean = found["plain"][2]
    assert {name for name, (_, allowed, *_) in found.items() if allowed > 1} == set(MOVE_TWICE) & found.keys()
    assert {name: numbers for name, numbers in found.items() if numbers[0] > numbers[1] or numbers[3]} == {}
    assert max(m / allowed for _, allowed, m, _ in found.values()) <= mean + 0.1


@pytest.mark.night
def test_ranks_that_clip_under_a_loss_scaler_wait_no_more_often_than_ranks_that_do_neither():
    found = answer("""
    import json
    from bench.syncs.ranks import ON_RANKS, count_on_ranks
    if __name__ == "__main__":
        made = {name: count_on_ranks(name, "sentinel", 24) for name in ON_RANKS}
        print(json.dumps([[each.usual, each.mean] for each in made.values()]))
    """)
    plain, both = found
    assert plain[0] == both[0] == 1
    assert both[1] <= plain[1] + 0.1


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


@pytest.mark.night
def test_an_overflow_that_nobody_waited_for_before_the_clip_is_told_as_on_a_cpu():
    found = answer("""
    import json, math, sys, tempfile
    import npu_backend; npu_backend.begin()
    import hypocenter, torch
    from hypocenter.detect.diary import entry_of
    from hypocenter.diagnose.diagnosis import diagnose
    from hypocenter.record.reader import open_run
    from hypocenter.record.schema import READINGS, readings_from

    def spoil(parameter, now, value):
        def write(gradient):
            if not now[0]:
                return gradient
            changed = gradient.clone()
            changed.view(-1)[:2] = value
            return changed
        parameter.register_hook(write)

    def told(device, value, order):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(4, 4) for _ in range(3)]
        model = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2]).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=5)
        now, waits = [False], []
        spoil(layers[1].weight, now, value)
        with tempfile.TemporaryDirectory() as folder:
            with hypocenter.watch(model, optimizer, out=folder + "/run", audit="never"), npu_backend.Syncs() as syncs:
                for step in range(11):
                    optimizer.zero_grad()
                    now[0] = step in (3, 9)  # nothing tells of the first; before the second the scale has just grown
                    scaler.scale(model(torch.ones(8, 4, device=device)).square().mean()).backward()
                    before = syncs.n
                    for do in order:
                        if do == "unscale":
                            scaler.unscale_(optimizer)
                        elif do == "clip":
                            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                        else:  # what comes after the clip must not matter
                            for p in model.parameters():
                                p.grad.nan_to_num_(0.0, 0.0, 0.0)
                    scaler.step(optimizer)
                    waits.append(syncs.n - before)
                    scaler.update()
            run = open_run(folder + "/run")
            rows = list(readings_from(run.table().select(READINGS.names)))
            entries = [entry_of(row for row in rows if row.step == s) for s in range(11)]
            finding = [[f.code, f.step, f.rank, f.param, f.cause] for f in diagnose(run).findings]
            records = [[r.skipped, r.loss_scale, r.grad_norm if math.isfinite(r.grad_norm) else str(r.grad_norm)]
                       for _, r in run.step_records()]
        steps = [[[r.site for r in e.culprits], {r.site: r.summary.absmax for r in e.near}, e.scale, len(e.found_inf)]
                 for e in (entries[3], entries[9])]
        exact = [[r.summary.n for r in e.culprits] for e in (entries[3], entries[9])]
        return [steps, records, finding], exact, waits

    out = []
    orders = (["unscale", "clip"], ["clip"], ["clip", "unscale"], ["unscale", "clip", "repair"])
    for value, order in [*((math.inf, order) for order in orders), (math.nan, orders[0])]:
        here, there = told("cpu", value, order), told("npu", value, order)
        out.append([here[0], there[0], there[1], there[2]])
    print(json.dumps(out))
    """)
    for here, there, exact, waits in found:
        assert [step[0] for step in here[0]] == [["2.weight"]] * 2
        for a, b in zip(here[0], there[0], strict=True):
            assert (a[0], a[2:]) == (b[0], b[2:])
            assert b[1] == pytest.approx(a[1], rel=1e-5)
        assert [record[:2] for record in there[1]] == [record[:2] for record in here[1]]
        assert [record[2] for record in there[1]][:3] == pytest.approx([record[2] for record in here[1]][:3], rel=1e-5)
        assert there[2][: len(here[2])] == here[2]
        assert exact == [[1], [16]]  # counted where it was likely, else only told
        assert min(waits[6:9]) == 2  # one of the scaler's own, one of ours


@pytest.mark.night
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
