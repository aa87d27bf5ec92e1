"""The loss-scale diary of real GradScalers: what each step's rows say, and that training is left alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.detect.diary import SCALED_GRAD, Entry, entry_of
from hypocenter.record.reader import open_run
from hypocenter.record.schema import READINGS, readings_from
from hypocenter.session.observers.diary import NEAREST, ROTATION, Diary

torch.set_num_threads(1)
FUSED = [False, True]
UNSCALE = [False, True]


class Blocks(nn.Module):
    """Linear layers of which one can be made to overflow by an infinite gradient in chosen places."""

    def __init__(self, n_layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(n_layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def spoil(parameter: nn.Parameter, at_step: list[bool], values: tuple[float, ...]) -> None:
    """Put values into the gradient of a parameter, as an overflow in float16 would."""

    def write(gradient: torch.Tensor) -> torch.Tensor:
        if not at_step[0]:
            return gradient
        changed = gradient.clone()
        changed.view(-1)[: len(values)] = torch.tensor(values)
        return changed

    parameter.register_hook(write)


def train(
    *,
    fused: bool = False,
    unscale: bool = False,
    clip_only: bool = False,
    bad_steps: tuple[int, ...] = (2,),
    n_steps: int = 6,
    n_layers: int = 3,
    accumulate: int = 1,
    scaler: torch.amp.GradScaler | None = None,
) -> tuple[list[torch.Tensor], dict, torch.amp.GradScaler]:
    torch.manual_seed(0)
    model = Blocks(n_layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    scaler = scaler or torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    now = [False]
    spoil(model.layers[1].weight, now, (math.inf, -math.inf, math.nan, math.nan, 3e4))
    for step in range(n_steps):
        optimizer.zero_grad()
        now[0] = step in bad_steps
        for _ in range(accumulate):
            scaler.scale(model(torch.randn(8, 4)).square().mean() / accumulate).backward()
        if unscale:
            scaler.unscale_(optimizer)
        if unscale or clip_only:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    return [p.detach().clone() for p in model.parameters()], scaler.state_dict(), scaler


def watched(tmp_path, **options) -> tuple[list[Entry], list]:
    with hypocenter.watch(out=tmp_path / "run", replay=False):
        train(**options)
    return entries(tmp_path / "run")


def entries(directory) -> tuple[list[Entry], list]:
    run = open_run(directory)
    rows = list(readings_from(run.table().select(READINGS.names)))
    records = [record for _, record in run.step_records()]
    found = [entry_of(row for row in rows if row.step == step) for step in sorted({r.step for r in records})]
    return [entry for entry in found if entry is not None], records


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("unscale", UNSCALE)
def test_each_step_has_scale_facts_and_what_was_found(tmp_path, fused, unscale):
    found, records = watched(tmp_path, fused=fused, unscale=unscale)

    assert [e.scale for e in found] == [1024, 1024, 2048, 1024, 1024, 2048]  # grew after 2 steps, fell at the bad one
    assert [e.facts["growth_tracker"] for e in found] == [0, 1, 0, 0, 1, 0]
    assert [e.found_inf for e in found] == [(), (), ("cpu",), (), (), ()]
    assert [r.skipped for r in records] == [False, False, True, False, False, False]
    assert {e.kind for e in found} == {"GradScaler"}
    assert {k: v for k, v in found[0].facts.items() if k != "growth_tracker"} == {
        "growth_interval": 2, "growth_factor": 2, "backoff_factor": 0.5, "init_scale": 1024, "is_dynamic": 1,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("unscale", UNSCALE)
def test_an_overflow_names_its_parameters_with_exact_counts_and_the_nearest_others(tmp_path, fused, unscale):
    found, _ = watched(tmp_path, fused=fused, unscale=unscale)

    bad = found[2]
    (culprit,) = bad.culprits
    assert culprit.site == "layers.1.weight"
    assert (culprit.summary.n_posinf, culprit.summary.n_neginf, culprit.summary.n_nan, culprit.summary.n) == (
        1, 1, 2, 16,
    )  # fmt: skip
    assert culprit.summary.absmax == 3e4  # of the finite ones, the scale still in it
    assert [r.site for r in bad.near] == sorted(
        (r.site for r in bad.near), key=lambda site: -next(r.summary.absmax for r in bad.near if r.site == site)
    )
    assert {r.site for r in bad.near} == {f"layers.{i}.{n}" for i in range(3) for n in ("weight", "bias")} - {
        "layers.1.weight"
    }
    assert ("rebuilt" in bad.facts) == unscale


def test_a_clip_before_unscale_does_not_spread_the_blame(tmp_path):
    found, records = watched(tmp_path, clip_only=True)

    assert [r.site for r in found[2].culprits] == ["layers.1.weight"]
    assert found[2].culprits[0].summary.absmax == 3e4
    assert records[2].skipped


@pytest.mark.parametrize("unscale", UNSCALE)
def test_a_healthy_step_looks_at_an_eighth_of_the_parameters_in_turn(tmp_path, unscale):
    found, _ = watched(tmp_path, n_layers=8, bad_steps=(), n_steps=ROTATION, unscale=unscale)

    assert {len(e.gradients) for e in found} == {16 / ROTATION}
    assert {r.site for e in found for r in e.gradients} == {
        f"layers.{i}.{n}" for i in range(8) for n in ("weight", "bias")
    }
    assert not any(e.culprits or "rebuilt" in e.facts for e in found)


def test_the_same_magnitudes_whether_the_user_unscales_and_clips_or_not(tmp_path):
    plain, _ = watched(tmp_path / "a", bad_steps=(0,), n_steps=2)  # at step 0 nothing has been clipped yet
    clipped, _ = watched(tmp_path / "b", bad_steps=(0,), n_steps=2, unscale=True)

    for a, b in zip(plain, clipped, strict=True):
        assert [(r.site, r.summary) for r in a.gradients] == [(r.site, r.summary) for r in b.gradients]


def test_at_most_so_many_of_those_that_did_not_overflow(tmp_path):
    found, _ = watched(tmp_path, n_layers=40, bad_steps=(0,), n_steps=1)

    assert (len(found[0].culprits), len(found[0].near)) == (1, NEAREST)


def test_micro_batches_are_one_entry(tmp_path):
    found, records = watched(tmp_path, accumulate=3)

    assert [e.found_inf for e in found] == [(), (), ("cpu",), (), (), ()]
    assert {r.n_microbatches for r in records} == {3}
    assert found[2].culprits[0].summary.absmax == 9e4  # the sum of three


@pytest.mark.slow
@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("unscale", UNSCALE)
@pytest.mark.parametrize("level", ["sentinel", "modules"])
def test_weights_and_scaler_are_bit_identical(tmp_path, fused, unscale, level):
    plain = train(fused=fused, unscale=unscale, accumulate=2)

    with hypocenter.watch(out=tmp_path / "run", level=level):
        with_us = train(fused=fused, unscale=unscale, accumulate=2)

    assert all(torch.equal(a, b) for a, b in zip(plain[0], with_us[0], strict=True))
    assert plain[1] == with_us[1]


def test_a_scaler_that_is_off_has_no_diary(tmp_path):
    found, records = watched(tmp_path, scaler=torch.amp.GradScaler("cpu", enabled=False), bad_steps=())

    assert found == []
    assert len(records) == 6
    assert not any(r.skipped for r in records)


def test_a_scaler_given_to_watch_is_seen_once(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    with hypocenter.watch(out=tmp_path / "run", scaler=scaler, replay=False):
        train(scaler=scaler)

    found, records = entries(tmp_path / "run")
    assert [e.n_optimizers for e in found] == [1] * 6
    assert len(records) == 6


def test_each_optimizer_has_its_own_answer(tmp_path):
    model = Blocks(2)
    first = torch.optim.SGD(model.layers[0].parameters(), lr=0.1)
    second = torch.optim.AdamW(model.layers[1].parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    spoil(model.layers[1].weight, [True], (math.inf,))
    before = model.layers[0].weight.detach().clone(), model.layers[1].weight.detach().clone()

    with hypocenter.watch(model, out=tmp_path / "run", replay=False):
        scaler.scale(model(torch.randn(8, 4)).sum()).backward()
        scaler.step(first)
        scaler.step(second)
        scaler.update()

    ((entry,), records) = entries(tmp_path / "run")
    assert not torch.equal(before[0], model.layers[0].weight)
    assert torch.equal(before[1], model.layers[1].weight)
    assert [r.skipped for r in records] == [False, True]
    assert (entry.n_optimizers, entry.n_skipped, entry.found_inf) == (2, 1, ("cpu",))
    assert [r.site for r in entry.culprits] == ["layers.1.weight"]
    assert scaler.get_scale() == 32.0


def test_a_skip_is_what_the_scaler_did_not_what_the_gradients_look_like_afterwards(tmp_path):
    model = Blocks(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    spoil(model.layers[1].weight, [True], (math.inf,))

    with hypocenter.watch(out=tmp_path / "run", replay=False):
        scaler.scale(model(torch.randn(8, 4)).sum()).backward()
        scaler.unscale_(optimizer)
        for parameter in model.parameters():
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)  # too late: the scaler has seen it
        scaler.step(optimizer)

    ((entry,), (record,)) = entries(tmp_path / "run")
    assert record.skipped
    assert [r.site for r in entry.culprits] == ["layers.1.weight"]


def test_torch_refuses_a_closure_by_name_and_nothing_is_recorded_of_it(tmp_path):
    model = Blocks(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

    with hypocenter.watch(out=tmp_path / "run", replay=False):
        scaler.scale(model(torch.randn(8, 4)).sum()).backward()
        with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
            scaler.step(optimizer, closure=lambda: None)
        scaler.step(optimizer)
        scaler.update()

    found, records = entries(tmp_path / "run")
    assert ([e.step for e in found], [r.step for r in records]) == ([0], [0])


def test_a_closure_by_position_gets_through_torch_and_is_one_step(tmp_path):
    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Blocks(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(8, 4)).sum()
            scaler.scale(loss).backward()
            return loss

        for _ in range(3):
            closure()
            scaler.step(optimizer, closure)
            scaler.update()
        return [p.detach().clone() for p in model.parameters()]

    plain = run()
    with hypocenter.watch(out=tmp_path / "run", replay=False):
        with_us = run()

    found, records = entries(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(plain, with_us, strict=True))
    assert ([e.step for e in found], [r.step for r in records]) == ([0, 1, 2], [0, 1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, math.inf, 1e-310, 1e-45, math.nan])
@pytest.mark.parametrize("unscale", UNSCALE)
@pytest.mark.parametrize("bad_steps", [(), (0, 1, 2)])
def test_no_scale_breaks_anything(tmp_path, capsys, scale, unscale, bad_steps):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    plain = train(scaler=scaler, unscale=unscale, n_steps=3, bad_steps=bad_steps)

    with hypocenter.watch(out=tmp_path / "run"):
        again = train(
            scaler=torch.amp.GradScaler("cpu", init_scale=scale), unscale=unscale, n_steps=3, bad_steps=bad_steps
        )

    found, records = entries(tmp_path / "run")
    assert "internal error" not in capsys.readouterr().err
    assert len(found) == len(records) == 3
    first = torch.tensor(scale).item()  # as float32 holds it
    assert found[0].scale == first or (math.isnan(first) and math.isnan(found[0].scale))
    assert all(
        torch.equal(
            a,
            b,
        )
        or (a.isnan() == b.isnan()).all()
        for a, b in zip(plain[0], again[0], strict=True)
    )
    assert str(plain[1]) == str(again[1])


def test_one_transfer_a_healthy_step_and_none_per_tensor(tmp_path, monkeypatch):
    from hypocenter.session.observers import diary

    calls = []
    to_host = diary.to_host
    monkeypatch.setattr(diary, "to_host", lambda scalars: calls.append(len(scalars)) or to_host(scalars))
    monkeypatch.setattr(diary, "counted", lambda tensors: pytest.fail("nothing is counted in a healthy step"))

    watched(tmp_path, n_layers=16, bad_steps=(), n_steps=4, unscale=True)

    assert calls == [4, 4, 4, 4]


def test_nothing_of_a_step_is_kept_in_memory_after_it(tmp_path):
    held: list[Diary] = []
    with hypocenter.watch(out=tmp_path / "run", replay=False) as handle:
        held += [o for o in handle._session.parts.observers._all if isinstance(o, Diary)]
        train(unscale=True, bad_steps=(5,))

    (diary,) = held
    assert (diary._seen, diary._started, diary._unscaled) == ({}, {}, {})


def test_a_diary_that_fails_is_taken_out_and_training_goes_on(tmp_path, capsys, monkeypatch):
    plain = train(unscale=True)
    monkeypatch.setattr(Diary, "_facts", lambda *a: (_ for _ in ()).throw(KeyError("planted")))

    with hypocenter.watch(out=tmp_path / "run", replay=False):
        with_us = train(unscale=True)

    found, records = entries(tmp_path / "run")
    assert capsys.readouterr().err.count("Diary switched off after an internal error: KeyError: 'planted'") == 1
    assert all(torch.equal(a, b) for a, b in zip(plain[0], with_us[0], strict=True))
    assert [e.scale for e in found] == [1024, 1024, 2048, 1024, 1024, 2048]  # the session's own row
    assert [r.skipped for r in records] == [False, False, True, False, False, False]


def test_rows_are_of_the_scaled_gradient_phase_and_port(tmp_path):
    found, _ = watched(tmp_path)

    assert {(r.phase, r.port, r.dtype) for e in found for r in e.gradients} == {("scaler", SCALED_GRAD, "float32")}


@pytest.mark.slow
@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("options", [{"unscale": True}, {"clip_only": True}, {}])
def test_on_a_device_that_would_have_to_be_waited_for_the_same_is_seen(tmp_path, monkeypatch, fused, options):
    here, _ = watched(tmp_path / "here", fused=fused, **options)
    from hypocenter.tap import updates

    ask = updates.torch_found_inf
    monkeypatch.setattr(updates, "torch_found_inf", lambda *a, may_wait: ask(*a, may_wait=True) if may_wait else {})

    there, records = watched(tmp_path / "there", fused=fused, **options)

    assert [r.skipped for r in records] == [False, False, True, False, False, False]
    for a, b in zip(here, there, strict=True):
        assert (a.scale, a.facts, a.found_inf) == (b.scale, b.facts, b.found_inf)
        assert [(r.site, r.summary) for r in a.culprits] == [(r.site, r.summary) for r in b.culprits]
