"""`doctor --comm` on real gloo ranks: healthy, and with faults planted in one rank each (faults/sitecustomize.py).

The product is started as a person starts it, with a timeout; it has ended by then, or the outer one of a test is hit.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import given
from blocks import page_line
from runner import run_command

from hypocenter.doctor.communication import Examined, examine_job, one_line, speaks

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FAULTS = HERE.parent / "examine" / "faults"
PATIENCE_S = 60.0  # the time that a rank has to come and to do its work, on a machine under load; nothing waits for it
SHORT_S = 20.0  # where something never ends, and the product has to
OUTER_S = 150.0


def environment(fault="", **more):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HYPOCENTER_", "TORCHELASTIC_"))}
    path = os.pathsep.join([str(FAULTS), str(ROOT / "src")])
    return kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DOCTOR_FAULT": fault} | more


def examined(fault="", *, n=4, timeout_s=PATIENCE_S) -> Examined:
    """Local ranks, as without a launcher."""
    return examine_job(timeout_s=timeout_s, environ=environment(fault), ranks=n)


def problems(found):
    return [(check.code, check.rank) for check in found.checks if check.status == "problem"]


def torchrun(*words, fault="", n=4, **more):
    torchrun = Path(sys.executable).with_name("torchrun")
    return subprocess.run(
        [str(torchrun), "--standalone", "--nproc-per-node", str(n), *words], env=environment(fault, **more),
        capture_output=True, text=True, timeout=OUTER_S, check=False,
    )  # fmt: skip


def processes_with(mark):
    """Processes that have inherited a variable of the environment."""
    found = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in each.read_bytes():
                found.append(int(each.parent.name))
        except OSError:
            continue
    return found


# the lines of docs/doctor.md


ALONE, UNDER_SRUN = page_line("doctor.md", "and a few ranks"), page_line("doctor.md", "srun hypocenter")


@pytest.mark.slow
@pytest.mark.parametrize("line", [ALONE, UNDER_SRUN])
def test_a_healthy_job_is_healthy_however_it_is_started(line, tmp_path):
    given.put(["SLURM_JOB_ID=4713", "MASTER_ADDR=127.0.0.1"], tmp_path)

    printed = run_command(line, tmp_path)

    assert "no rank of 2 takes 3 times as long" in " ".join(printed.split())
    assert "✗" not in printed


@pytest.mark.night
def test_a_healthy_job_gives_one_answer_from_one_rank():
    mark = f"MARK={uuid.uuid4()}"
    words = shlex.split(page_line("doctor.md", "torchrun"))
    assert words[:3] == ["torchrun", "--nproc-per-node", "8"]

    done = torchrun(*words[3:], "--json", "--timeout", "100", MARK=mark.partition("=")[2])

    answer = json.loads(done.stdout)  # one document: no other rank has printed a byte
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer["status"] == "healthy"
    of_job = {check["code"]: check for check in answer["checks"] if check["code"].startswith(("comm.", "arithmetic."))}
    assert {check["status"] for check in of_job.values()} <= {"ok", "not-applicable"}
    assert set(of_job) == {
        "comm.rendezvous", "comm.stuck", "comm.devices", "comm.versions", "comm.links", "comm.pairs", "comm.all-reduce",
        "comm.all-gather", "comm.reduce-scatter", "comm.all-to-all", "comm.bandwidth", "comm.slow-rank",
        "arithmetic.burn", "arithmetic.among-ranks",
    }  # fmt: skip
    for op in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        assert of_job[f"comm.{op}"]["evidence"]["dtypes"] == ["int64", "float64", "float32", "float16", "bfloat16"]
    assert processes_with(mark) == []


def test_a_rank_that_never_comes_is_named_and_nothing_is_left():
    mark = f"MARK={uuid.uuid4()}"

    done = torchrun(
        str(HERE / "comm_rank.py"), str(2 * SHORT_S), fault="never@2", n=3, MARK=mark.partition("=")[2]
    )  # torchrun ends the rank that hangs when another one has failed

    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert answer["missing"] == [2]
    assert [(c["code"], c["rank"]) for c in answer["checks"] if c["status"] == "problem"] == [("comm.rendezvous", 2)]
    assert any(c["code"] == "comm.all-reduce" and c["status"] == "ok" for c in answer["checks"])  # those that came
    assert processes_with(mark) == []


@pytest.mark.night
def test_the_first_rank_may_be_the_one_that_is_missing():
    done = torchrun(str(HERE / "comm_rank.py"), str(SHORT_S), fault="never@0", n=2)

    answer = json.loads(done.stdout)  # rank 1 speaks
    assert done.returncode == 1
    assert answer["missing"] == [0]


# three and four local ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "named"),
    [
        ("wrong-result@2", {("comm.all-reduce", 2)}),
        ("slow@2", {("comm.slow-rank", 2)}),
        (
            "left-out@3,wrong-part@2,wrong-matmul@1",
            {("comm.all-reduce", 3), ("comm.all-gather", 2), ("arithmetic.burn", 1)},
        ),
        # rank 0 is only pre-empted now and then, and what rank 1 sends to rank 2 arrives changed
        ("wrong-contribution@3,busy@0,bad-link@1", {("comm.all-reduce", 3), ("comm.pairs", None)}),
    ],
)
def test_the_rank_with_the_fault_is_named_and_nothing_else(faults, named):
    found = examined(faults, n=4 if "@3" in faults or "slow" in faults else 3)

    assert set(problems(found)) == named
    pairs = next(check.what for check in found.checks if check.code == "comm.pairs")
    assert ("1 → 2" in pairs) == ("bad-link" in faults)


# what never ends, ends


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["stuck", "hang-in-c"])
def test_a_rank_that_hangs_is_named_within_the_timeout(fault):
    found = examined(f"{fault}@1", n=2, timeout_s=SHORT_S)

    assert ("comm.stuck", 1) in problems(found)
    assert all(rank in (1, None) for _, rank in problems(found))


def test_a_rank_whose_process_crashes_says_how():
    found = examined("crash@1", n=2)

    died = next(check for check in found.checks if check.code == "comm.died")
    assert (died.rank, died.evidence["signal"]) == (1, signal.SIGSEGV)
    assert "string_at" in died.why  # what crashed, by the stack that the child has printed


def test_no_time_is_an_answer_too():
    found = examined(timeout_s=1.2, n=2)

    assert found.checks
    assert all(check.status == "problem" for check in found.checks)


@pytest.mark.night
def test_nothing_outlives_a_doctor_that_is_killed():
    mark = f"MARK={uuid.uuid4()}"
    program = "from hypocenter.doctor.communication import examine_job; examine_job(timeout_s=100, ranks=2)"
    doctor = subprocess.Popen([sys.executable, "-c", program], env=environment("stuck@1", MARK=mark.partition("=")[2]))
    deadline = time.monotonic() + OUTER_S
    while len(processes_with(mark)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(processes_with(mark)) == 3

    doctor.kill()
    doctor.wait()

    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_with(mark) == []


# who speaks


@pytest.mark.night
def test_the_lowest_rank_that_came_speaks():
    of = {rank: {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "a", "MASTER_PORT": "1"} for rank in range(3)}

    assert [speaks(Examined((), (), 3), of[rank]) for rank in range(3)] == [True, False, False]
    assert [speaks(Examined((), (0,), 3), of[rank]) for rank in range(3)] == [False, True, False]
    assert speaks(Examined((), (), 1), {})


@pytest.mark.night
def test_a_rank_that_reaches_no_store_says_so_and_where():
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}

    found = examine_job(timeout_s=12, environ=environment() | place)

    assert [(check.code, check.rank) for check in found.checks] == [("comm.rendezvous", 1)]
    assert "127.0.0.1:1" in found.checks[0].what
    assert found.missing == (0,)


def test_no_place_to_meet_cannot_be_told_apart_from_anything():
    found = examine_job(timeout_s=8, environ={"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})

    assert [check.status for check in found.checks] == ["cannot-tell"]
    assert any("MASTER_ADDR" in line for line in found.checks[0].fix)


@pytest.mark.night
def test_lines_of_four_ranks_never_interleave():
    reading, writing = os.pipe()
    children = []
    for rank in range(4):
        pid = os.fork()
        if pid == 0:
            for _ in range(200):
                one_line(writing, f"rank {rank} " + str(rank) * 300)
            os._exit(0)
        children.append(pid)
    os.close(writing)

    with os.fdopen(reading) as lines:
        said = lines.read().splitlines()
    for pid in children:
        os.waitpid(pid, 0)

    assert sorted(set(said)) == [f"rank {rank} " + str(rank) * 300 for rank in range(4)]
    assert len(said) == 800
