"""Where a process stands in its job, by what launchers set."""

import pytest

from hypocenter.doctor import job

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip
SRUN = {
    "SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "812",
    "SLURM_STEP_ID": "2", "SLURM_STEP_NODELIST": "gpu[08-09,11]", "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
}  # fmt: skip


def test_no_launcher():
    assert job.place({}) is None
    assert job.place({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) is None


def test_torchrun_has_a_store_of_its_own():
    here = job.place(TORCHRUN)

    assert here is not None
    assert (here.rank, here.n_ranks, here.local_rank, here.host, here.port) == (3, 4, 1, "node1", 29500)
    assert not here.hosts_store
    first = job.place({**TORCHRUN, "RANK": "0"})
    assert first is not None
    assert not first.hosts_store


def test_a_restart_meets_under_another_key():
    one, two = job.place(TORCHRUN), job.place({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"})

    assert one is not None
    assert two is not None
    assert one.key != two.key


def test_under_srun_rank_0_keeps_the_store_on_the_first_host():
    here = job.place(SRUN)
    other = job.place({**SRUN, "SLURM_PROCID": "5", "SLURM_LOCALID": "1"})

    assert here is not None
    assert other is not None
    assert (here.host, here.hosts_store, here.launcher) == ("gpu08", True, "srun")
    assert (other.host, other.port, other.key, other.hosts_store) == (here.host, here.port, here.key, False)
    assert 15000 <= here.port < 30000


def test_what_is_set_by_hand_counts():
    here = job.place({**SRUN, "MASTER_ADDR": "ib-gpu08", "MASTER_PORT": "4000"})

    assert here is not None
    assert (here.host, here.port) == ("ib-gpu08", 4000)


def test_mpirun_does_not_say_where_to_meet():
    here = job.place({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})

    assert here is not None
    assert here.host == ""


def test_hosts_of_ranks_in_blocks():
    assert job.hosts_of(SRUN) == {0: "gpu08", 1: "gpu08", 2: "gpu09", 3: "gpu09", 4: "gpu11", 5: "gpu11"}
    assert job.hosts_of({**SRUN, "SLURM_DISTRIBUTION": "cyclic"}) == {}
    assert job.hosts_of({**SRUN, **TORCHRUN}) == {}  # torchrun's ranks are not srun's
    assert job.hosts_of({}) == {}


@pytest.mark.parametrize(
    ("short", "names"),
    [
        ("", []),
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("gpu[08-10]", ["gpu08", "gpu09", "gpu10"]),
        ("gpu[1,3-4],login", ["gpu1", "gpu3", "gpu4", "login"]),
        ("r[1-2]-ib", ["r1-ib", "r2-ib"]),
    ],
)
def test_short_forms_of_host_names(short, names):
    assert job.expanded(short) == names


def test_local_ranks_find_nothing_of_another_launcher():
    found = job.local_environment({**SRUN, **TORCHRUN, "PATH": "/bin"}, 1, 2, 777)

    assert job.place(found) is not None
    assert found["PATH"] == "/bin"
    assert found["MASTER_PORT"] == "777"
    assert not any(name.startswith(("SLURM_", "TORCHELASTIC_")) for name in found)
