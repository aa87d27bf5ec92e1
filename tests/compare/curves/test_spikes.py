"""Spikes: where, on which side, and which batch was there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from made_curves import curve, falling, noise

from hypocenter.compare.curves.compare import compare_curves


def test_a_spike_names_its_step_side_and_batch() -> None:
    base = falling(500) + noise(0, 1, 500, 0.3, 0.02)[0]
    candidate = base.copy()
    base[200] += 2.0
    candidate[[200, 350]] += 2.0
    digests = {step: f"ids-{step}" for step in range(500)}

    found = compare_curves(
        replace(curve(base), digests=digests), replace(curve(candidate), digests={**digests, 400: "ids-other"})
    )

    told = {spike.step: (spike.side, spike.digest) for spike in found.spikes}
    assert told == {200: ("both", "ids-200"), 350: ("candidate", "ids-350")}
    assert found.first_other_batch == 400
    assert any("batches differ from step 400" in note for note in found.notes)


def test_digests_of_other_inputs_say_nothing() -> None:
    one, other = curve(falling(50)), curve(falling(50))

    found = compare_curves(replace(one, digests={0: "ids-1"}), replace(other, digests={0: "ids+mask-2"}))

    assert found.first_other_batch is None


def test_a_run_without_spikes_has_none() -> None:
    rows = falling(500) + noise(1, 20, 500, 0.5, 0.05)

    assert [compare_curves(curve(row), curve(row + 0.001)).spikes for row in rows] == [()] * 20


def test_loss_scales_that_differ_are_told() -> None:
    scales = np.full(100, 65536.0)
    other = np.where(np.arange(100) < 30, 65536.0, 32768.0)

    found = compare_curves(curve(falling(100), loss_scale=scales), curve(falling(100), loss_scale=other))

    assert any("first at step 30: 65536 against 32768" in note for note in found.notes)
    assert found.status == "accepted"
