"""Where each rank stands and what its parameters are called, in real runs of many layouts (gloo, CPU)."""

from pathlib import Path

import pytest
from launch import launch

from hypocenter.nouns import Coords
from hypocenter.record.reader import open_run

JOB = Path(__file__).with_name("places_job.py")
NAMES = {f"layers.{i}.{part}.{kind}" for i in range(4) for part in ("up", "down") for kind in ("weight", "bias")}


def recorded(tmp_path, mode, n):
    ended = launch(JOB, mode, n=n, out=tmp_path / "run")
    assert ended.code == 0, ended.stderr
    assert ended.diagnosis["status"] == "healthy", ended.diagnosis
    return open_run(tmp_path / "run")


def gradients(run, rank):
    table = run.table(rank)
    return {r["site"] for r in table.to_pylist() if r["phase"] == "grad" and r["port"] == "grad"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "source"),
    [("ddp", "data parallel"), ("fsdp2", "DeviceMesh"), ("fsdp1", "data parallel"), ("fsdp1-flat", "data parallel")],
)
def test_data_parallel_ranks_know_their_group_and_keep_the_users_names(tmp_path, mode, source):
    run = recorded(tmp_path, mode, 2)

    for rank in (0, 1):
        place = run.places[rank]
        assert (place.coords, place.groups, place.source) == (Coords(dp=rank), {"dp": (0, 1)}, source)
        assert (place.device, place.launcher, place.local_rank) == ("cpu", "torchrun", rank)
    assert gradients(run, 0) | gradients(run, 1) == NAMES


@pytest.mark.night
def test_without_a_wrapper_nothing_is_claimed(tmp_path):
    run = recorded(tmp_path, "none", 2)

    assert (run.places[1].coords, run.places[1].groups, run.places[1].source) == (Coords(), {}, "")


def test_a_mesh_without_names_over_which_weights_are_sharded_is_tensor_parallel(tmp_path):
    run = recorded(tmp_path, "tp-unnamed", 2)

    assert [run.places[r].coords for r in (0, 1)] == [Coords(tp=0), Coords(tp=1)]
    assert gradients(run, 1) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "second", "groups"),
    [
        ("mesh", Coords(dp=1, tp=0), {"tp": (2, 3), "dp": (0, 2)}),
        ("hsdp-named", Coords(dp=2), {"dp": (0, 1, 2, 3)}),
        ("ddp-in-mesh", Coords(pp=1, dp=0), {"pp": (0, 2), "dp": (2, 3)}),
    ],
)
def test_the_dimensions_of_a_mesh_become_axes(tmp_path, mode, second, groups):
    run = recorded(tmp_path, mode, 4)

    assert (run.places[2].coords, run.places[2].groups) == (second, groups)
    assert gradients(run, 2) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["pp", "pp-interleaved"])
def test_stages_of_a_pipeline_are_an_axis_and_their_names_those_of_the_whole_model(tmp_path, mode):
    run = recorded(tmp_path, mode, 2)

    assert [run.places[r].coords for r in (0, 1)] == [Coords(pp=0), Coords(pp=1)]
    assert gradients(run, 0) | gradients(run, 1) == NAMES
    assert not gradients(run, 0) & gradients(run, 1)
    sites = {site for site in run.sites() if "." in site and not site.startswith(("rng.", "batch."))}
    assert all(site.startswith("layers.") for site in sites)
