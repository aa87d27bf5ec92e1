"""Lines of NCCL: read, explained by the table, told apart from those that only follow."""

import pytest

from hypocenter.doctor.nccl_log import NoNcclLogError, checks_of, explained, known, parsed, read

WARNINGS = {  # one text for each entry of the table, in the form that NCCL's sources give it
    "shared-memory-full": "Error: failed to extend /dev/shm/nccl-03v824 to 4194660 bytes",
    "shared-memory-gone": "unlink shared memory /dev/shm/nccl-d5rTd0 failed, error: No such file or directory (2)",
    "locked-memory": "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    "gpu-direct-registration": "Call to ibv_reg_mr failed with error Bad address",
    "ib-retry-exceeded": "NET/IB : Got completion from peer 10.0.0.2<549> with status=12 opcode=0 len=0 vendor err 129",
    "ib-local-access": "NET/IB : Got completion from peer 10.0.0.2<532> with error 4, opcode 3, len 1, vendor err 81",
    "ib-flushed": "NET/IB : Got completion from peer 10.0.0.2<559> with status=5 opcode=3 len=3 vendor err 249 (Recv)",
    "ib-queue-pair": "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1",
    "ib-async-event": "NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)",
    "ib-mixed-links": "NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE.",
    "no-interface": "Bootstrap : no socket interface found",
    "wrong-interface": "socketStartConnect: Connect to 172.17.0.2<38455> failed : Software caused connection abort",
    "connection-refused": "socketPollConnect: Connect to 10.0.0.2<53> returned 111(Connection refused) errno 115",
    "duplicate-gpu": "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
    "version-mismatch": "Mismatched NCCL version detected : rank 0 version 22105 rank 1 version 21903",
    "driver-too-old": "CUDA Driver version found is 11040. Minimum requirement is 12000",
    "cuda-out-of-memory": "Cuda failure 2 'out of memory'",
    "cuda-peer-access": "Cuda failure 'peer access is not supported between these two devices'",
    "cuda-fault": "Cuda failure 719 'unspecified launch failure'",
    "cuda-failure": "Cuda failure 3 'initialization error'",
    "nvls": "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 1 'invalid argument'.",
    "nvml": "nvmlInit_v2() failed: Driver/library version mismatch",
    "no-transport": "No transport found for rank 0[1000] -> rank 1[2000]",
    "message-truncated": "NET/Socket : peer 10.0.0.2<4> message truncated : receiving 1024 bytes instead of 512.",
    "bootstrap-mismatch": "Bootstrap Root : mismatch in info from procs, nranks 4 vs 8, nroots 1 vs 1",
    "ibverbs-missing": "Failed to open libibverbs.so[.1]",
    "address-in-use": "socketTryAccept: Accept failed: Too many open files",
    "peer-gone": "socketProgress: Connection closed by remote peer node1<57557>",
}


def line(text, host="n1", where="misc/socket.cc:49 "):
    return f"{host}:33:77 [0] {where}NCCL WARN {text}"


def info(text, host="n1", pid=33):
    return f"{host}:{pid}:77 [0] NCCL INFO {text}"


def by_code(lines):
    return {check.code: check for check in checks_of(parsed(lines))}


@pytest.mark.parametrize("name", list(WARNINGS))
def test_a_known_warning_is_explained_by_its_own_entry(name):
    found = by_code([line(WARNINGS[name])])[f"comm.nccl-{name}"]

    assert found.status in ("problem", "warning")
    assert found.why
    assert WARNINGS[name][:40] in found.what
    assert found.fix or next(entry for entry in known() if entry.name == name).is_consequence


def test_each_entry_of_the_table_has_its_text_here():
    assert {entry.name for entry in known()} == set(WARNINGS)


@pytest.mark.parametrize("text", ["Coll AllReduce size 4 symmetric registration check failed", "PARAM: odd", "hello"])
def test_what_nobody_knows_is_quoted_and_not_explained(text):
    assert explained(text) is None
    found = by_code([line(text)])["comm.nccl-warning"]
    assert found.status == "warning"
    assert text in found.what


def test_what_only_follows_is_left_out_beside_a_cause():
    lines = [line(WARNINGS["peer-gone"]), line(WARNINGS["peer-gone"], host="n2"), line(WARNINGS["shared-memory-full"])]

    assert set(by_code(lines)) == {"comm.nccl-shared-memory-full"}
    assert set(by_code(lines[:2])) == {"comm.nccl-peer-gone"}


def test_the_same_warning_is_told_once_with_how_often_and_where():
    found = by_code([line(WARNINGS["locked-memory"], host) for host in ("n1", "n2", "n1")])["comm.nccl-locked-memory"]

    assert found.evidence["hosts"] == ["n1", "n2"]
    assert found.evidence["count"] == 3


def test_versions_and_transports_are_read_from_lines_of_any_age():
    lines = [
        "NCCL version 2.10.3+cuda11.3",
        info("Bootstrap : Using eth0:172.17.0.3<0>"),
        "[2025-03-01 12:00:00] n1:33:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
        "[rank0]: n1:33:77 [0] NCCL INFO Channel 01 : 0[1a000] -> 1[3d000] via SHM/direct/direct",
        info("Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA"),
        info("Channel 00/0 : 1[1] -> 2[0] [receive] via NET/IB/0/GDRDMA", host="n2"),
        info("Ring 00 : 3 -> 4 via P2P/IPC"),
        info("Using network IB"),
        info("ncclCommInitRank comm 0xbde4170 rank 1 nranks 4 cudaDev 1 busId 80 - Init START"),
        "epoch 1 loss 2.3",
    ]

    log = parsed(lines)

    assert log.transports == {"P2P/CUMEM": 1, "SHM/direct": 1, "NET/IB with GPU Direct RDMA": 1, "P2P/IPC": 1}
    assert list(log.networks) == ["IB"]
    assert log.interfaces == {"n1": {"eth0"}}
    assert log.n_ranks == 4
    assert set(log.versions) == {"2.10.3"}
    assert by_code(lines)["comm.nccl-transport"].status == "ok"


def test_two_versions_are_a_problem():
    lines = [info("NCCL version 2.21.5+cuda12.4"), info("NCCL version 2.19.3+cuda12.1", host="n2")]

    found = by_code(lines)["comm.nccl-version"]

    assert found.status == "problem"
    assert "2.21.5 on n1; 2.19.3 on n2" in found.what
    assert "comm.nccl-version" not in by_code(lines[:1] * 2)


@pytest.mark.parametrize(
    ("lines", "fix"),
    [
        (["Bootstrap : Using lo:127.0.0.1<0>"], "NCCL_SOCKET_IFNAME"),
        (["Bootstrap : Using docker0:172.17.0.1<0>"], "NCCL_SOCKET_IFNAME"),
        (["NET/IB : No device found.", "Using network Socket"], "ibv_devinfo"),
        (["NCCL_IB_DISABLE set by environment to 1.", "Using network Socket"], "unset NCCL_IB_DISABLE"),
    ],
)
def test_a_way_that_leads_nowhere_or_slowly_matters_between_hosts_only(lines, fix):
    here = [info(text) for text in lines]
    both = [*here, *(info(text, host="n2") for text in lines)]

    found = by_code(both)["comm.nccl-transport"]

    assert found.status in ("problem", "warning")
    assert any(fix in line for line in found.fix)
    alone = by_code(here).get("comm.nccl-transport")
    assert alone is None or alone.status == "ok"


def test_a_switch_that_keeps_cards_apart_is_told():
    lines = [info("NCCL_P2P_DISABLE set by environment to 1"), info("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct")]

    assert by_code(lines)["comm.nccl-transport"].fix == ("unset NCCL_P2P_DISABLE",)


def test_a_file_without_a_line_of_nccl_is_said_to_be_none(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("epoch 1\n")

    with pytest.raises(NoNcclLogError) as raised:
        read(path)

    assert str(raised.value).splitlines() == [
        "error[no-nccl-log]: no line in it is NCCL's",
        f"  --> {path}",
        "   = why: its lines say `NCCL INFO` or `NCCL WARN`",
        "   = fix: export NCCL_DEBUG=INFO and run the program again, its output into the file",
    ]
    with pytest.raises(NoNcclLogError):
        read(tmp_path / "none")
