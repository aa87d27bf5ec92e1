"""Who a process is, by the environment that each launcher gives it."""

import os

import pytest

from hypocenter.launcher import attempt, launcher, local_rank, rank_and_size, task

SRUN = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1",
        "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}  # fmt: skip
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "2"}  # fmt: skip
BATCH = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "4294967291"}


@pytest.mark.parametrize(
    ("environ", "name", "rank", "local", "job"),
    [
        (SRUN, "srun", (3, 4), 1, "77.0"),
        (TORCHRUN, "torchrun", (5, 8), 1, "abc"),
        (SRUN | TORCHRUN, "torchrun", (5, 8), 1, "abc"),  # an agent on each node, started by srun
        (TORCHRUN | {"ACCELERATE_MIXED_PRECISION": "no"}, "accelerate", (5, 8), 1, "abc"),
        (TORCHRUN | {"CROSS_RANK": "0"}, "deepspeed", (5, 8), 1, "abc"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
          "PMIX_NAMESPACE": "prterun-node-12@1"}, "mpirun", (1, 2), 1, "prterun-node-12-1"),
        # known to all tasks of one `mpirun`: the process that started them
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}, "mpirun", (0, 2), 0, "0-PARENT"),
    ],
)  # fmt: skip
def test_each_launcher_is_known(environ, name, rank, local, job):
    assert (launcher(environ), rank_and_size(environ), local_rank(environ)) == (name, rank, local)
    found = task(environ)
    assert found is not None
    assert (found.number, found.n_tasks, found.job) == (*rank, job.replace("PARENT", str(os.getppid())))


def test_a_batch_script_of_slurm_is_no_rank_and_one_process_no_task():
    assert (launcher(BATCH), rank_and_size(BATCH), task(BATCH)) == ("", None, None)
    assert task({"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert (launcher({}), rank_and_size({}), local_rank({}), attempt({})) == ("", None, None, 0)


def test_jobs_of_one_machine_on_the_same_port_are_told_apart_by_their_agent():
    alone = TORCHRUN | {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "8"}

    assert task(alone).job == f"29500-{os.getppid()}"
    assert task(alone | {"LOCAL_WORLD_SIZE": "4"}).job == "29500"  # agents of two machines have different numbers


def test_attempts_count_restarts_of_the_agent_and_of_slurm():
    assert attempt(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "2"}) == 2
    assert attempt(SRUN | {"SLURM_RESTART_COUNT": "1"}) == 1
    requeued = TORCHRUN | {"SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RESTART_COUNT": "0"}
    assert attempt(requeued) == 3  # after all that the agent of the first start may have made
