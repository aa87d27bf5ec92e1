"""What reports of ranks say together: who is named, and when nobody may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_reports import OPS, TEST, Job, facts

from hypocenter.doctor.over_ranks.pace import clearly_slower
from hypocenter.doctor.over_ranks.pages import manuals
from hypocenter.doctor.over_ranks.reports import named, runs


def wrong_case(op, *, parts=(0,), blamed=None, input_ok=True, n=4096):
    first = {"index": 3, "expected": 7.0, "actual": 8.0}
    return {"op": op, "dtype": "float32", "n_elements": n, "n": n, "n_wrong": 1, "input_ok": input_ok, "first": first,
            "parts": list(parts), "digest": 5, "blamed": blamed}  # fmt: skip


def spoil(job, rank, op, **how):
    entry = job.reports[rank]["collectives"][op]
    entry["n_wrong"] += 1
    entry["wrong"].append(wrong_case(op, **how))


def test_a_job_that_is_well_has_nothing_to_tell():
    job = Job()

    assert job.troubles() == []
    assert {f"comm.{op}" for op in OPS} <= {check.code for check in job.judged().checks if check.status == "ok"}


def test_each_check_that_can_come_has_a_whole_page():
    pages = manuals()

    assert all(not page.missing for page in pages.values())
    assert {check.code for check in Job().judged().checks} <= set(pages)


# ranks that do not come, or do not go on


def test_a_missing_rank_is_named_with_the_host_that_the_launcher_gave_it():
    job = Job()
    job.without(2)
    job.hosts = {0: "gpu07", 1: "gpu07", 2: "gpu08", 3: "gpu08"}

    assert job.troubles() == [("comm.rendezvous", 2)]
    assert "rank 2 (gpu08) of 4 never came" in job.what("comm.rendezvous")
    assert job.judged().missing == (2,)


def test_a_late_rank_is_late_not_absent():
    job = Job()
    job.without(1)
    job.late = [1]

    assert "rank 1 came too late" in job.what("comm.rendezvous")


def test_a_rank_whose_child_ended_before_it_came_says_how():
    job = Job()
    job.without(3)
    job.dead = {3: {"code": 1, "at": "importing torch", "tail": ["ImportError: libcudart.so.12"]}}

    assert "exit code 1 while importing torch, ImportError: libcudart.so.12" in job.what("comm.rendezvous")


def test_a_rank_that_is_stuck_is_named_and_those_that_wait_for_it_are_not():
    job = Job()
    for rank in (0, 1, 3):
        job.reports[rank]["at"] = "waiting in all-reduce of 1 int64"
        job.reports[rank]["troubles"] = [
            {"phase": "group", "at": "waiting in all-reduce", "kind": "timeout", "text": "t"}
        ]
    job.reports[2].update(at="starting all-reduce of 1 int64", at_s=12.0)

    assert job.troubles() == [("comm.stuck", 2)]


def test_nobody_is_named_when_all_wait():
    job = Job()
    for each in job.reports.values():
        each["at"] = "waiting in all-reduce of 1 int64"

    assert job.troubles() == [("comm.stuck", None)]
    assert "none can be named" in next(c.why for c in job.judged().checks if c.code == "comm.stuck")


def test_a_silent_rank_and_a_crashed_one_are_named():
    job = Job()
    del job.reports[1]
    job.silent = {1: "waiting in a barrier"}
    job.reports[3] = {
        "rank": 3,
        "died": {"signal": 7, "at": "starting", "tail": ["x", "Current thread 1:", "  File a"]},
    }

    assert set(job.troubles()) == {("comm.stuck", 1), ("comm.died", 3)}
    assert "SIGBUS" in job.what("comm.died")
    assert any("/dev/shm" in line for c in job.judged().checks for line in c.fix)


# wrong results


@pytest.mark.parametrize("op", OPS)
def test_a_result_that_is_wrong_on_one_rank_only_names_it(op):
    job = Job()
    spoil(job, 1, op)

    assert job.troubles() == [(f"comm.{op}", 1)]


@given(culprit=st.integers(0, 3))
def test_a_sum_from_which_one_rank_is_left_out_names_it(culprit):
    job = Job()
    for rank in range(4):
        spoil(job, rank, "all-reduce", blamed=[culprit, -1.0])

    assert job.troubles() == [("comm.all-reduce", culprit)]


@given(culprit=st.integers(0, 3))
def test_small_groups_single_out_the_rank_that_puts_in_a_wrong_number(culprit):
    job = Job()
    for rank in range(4):
        spoil(job, rank, "all-reduce")
        pairs = [sorted([rank, (rank + 1) % 4]), sorted([rank, (rank - 1) % 4])]
        job.reports[rank]["small_groups"] = [
            {"op": "all-reduce", "ranks": pair, "wrong": culprit in pair} for pair in pairs
        ]

    assert job.troubles() == [("comm.all-reduce", culprit)]


def test_groups_that_are_all_wrong_or_all_right_name_nobody():
    for is_wrong in (True, False):
        job = Job()
        for rank in range(4):
            spoil(job, rank, "all-reduce")
            job.reports[rank]["small_groups"] = [
                {"op": "all-reduce", "ranks": sorted([rank, (rank + 1) % 4]), "wrong": is_wrong}
            ]

        assert job.troubles() == [("comm.all-reduce", None)]


def test_of_two_ranks_it_cannot_be_told():
    job = Job(2)
    for rank in range(2):
        spoil(job, rank, "all-reduce")

    assert job.troubles() == [("comm.all-reduce", None)]
    assert "of two ranks" in next(c.why for c in job.judged().checks if c.code == "comm.all-reduce")


@given(culprit=st.integers(0, 3))
def test_a_part_that_is_wrong_everywhere_names_its_sender(culprit):
    job = Job()
    for rank in range(4):
        if rank != culprit:
            spoil(job, rank, "all-to-all", parts=[culprit])

    assert job.troubles() == [("comm.all-to-all", culprit)]


def test_parts_are_numbered_among_those_that_came():
    job = Job()
    job.without(0)
    for rank in (1, 3):
        spoil(job, rank, "all-gather", parts=[1])  # the second of ranks 1, 2, 3

    assert ("comm.all-gather", 2) in job.troubles()


def test_numbers_changed_before_they_were_sent_name_their_rank():
    job = Job()
    for rank in range(4):
        spoil(job, rank, "all-reduce", input_ok=rank != 2)

    assert job.troubles() == [("comm.all-reduce", 2)]


# links


@given(link=st.sampled_from([(a, b) for a in range(4) for b in range(4) if a != b]))
def test_a_link_that_changes_what_goes_over_it_is_named_but_no_rank(link):
    job = Job()
    job.reports[link[1]]["pairs"][str(link[0])]["n_wrong"] = 3

    assert job.troubles() == [("comm.pairs", None)]
    assert f"{link[0]} → {link[1]}" in job.what("comm.pairs")


@pytest.mark.parametrize("what", ["sends", "receives"])
def test_a_rank_all_of_whose_links_are_bad_is_named(what):
    job = Job()
    for other in (0, 1, 3):
        receiver, sender = (other, 2) if what == "sends" else (2, other)
        job.reports[receiver]["pairs"][str(sender)]["n_wrong"] = 1

    assert job.troubles() == [("comm.pairs", 2)]
    assert f"what rank 2 {what}" in job.what("comm.pairs")


def test_a_host_that_nobody_reaches_is_named_not_every_link():
    job = Job()
    for rank in (0, 1, 2):
        job.reports[rank]["links"]["3"] = {"error": "Connection timed out", "where": "10.0.0.4"}

    assert job.troubles() == [("comm.links", None)]
    assert "nobody reaches rank 3" in job.what("comm.links")


def test_links_that_were_closed_by_another_failure_accuse_nobody():
    job = Job()
    job.reports[0]["pairs"] = {"1": {"error": "closed", "text": "Connection reset by peer"}}

    assert not any(code == "comm.pairs" for code, _ in job.troubles())


def slow_links(job, rate, *pairs):
    for a, b in pairs:
        job.reports[a]["pairs"][str(b)]["gib_s"] = job.reports[b]["pairs"][str(a)]["gib_s"] = rate


def test_a_slow_link_between_hosts_is_named():
    job = Job(6)
    for rank in range(6):
        job.facts[rank]["host"] = f"node{rank}"
    slow_links(job, 0.1, (1, 4))

    assert job.troubles() == [("comm.slow-link", None)]
    assert "ranks 1 and 4" in job.what("comm.slow-link")


def test_a_rank_all_of_whose_links_are_slow_is_named():
    job = Job(6)
    for rank in range(6):
        job.facts[rank]["host"] = f"node{rank}"
    slow_links(job, 0.1, *((2, other) for other in range(6) if other != 2))

    assert job.troubles() == [("comm.slow-link", 2)]


def test_links_twice_as_slow_and_busy_cores_of_one_host_are_no_news():
    apart, together = Job(6), Job(6)
    for rank in range(6):
        apart.facts[rank]["host"] = f"node{rank}"
    slow_links(apart, 0.9, (1, 4))
    slow_links(together, 0.05, (1, 4))

    assert apart.troubles() == together.troubles() == []


def test_a_name_that_is_the_loopback_matters_among_several_hosts_only():
    one, two = Job(2), Job(2)
    for job in (one, two):
        job.facts[1]["name_is"] = "127.0.1.1"
    two.facts[1]["host"] = "node1"

    assert one.troubles() == []
    assert two.troubles() == [("comm.host-name", None)]


# pace


def test_a_rank_that_starts_late_each_time_is_slow():
    job = Job()
    job.reports[2]["pace"]["all-reduce"]["launch_ms"] = [30.0] * 7

    assert job.troubles() == [("comm.slow-rank", 2)]


def test_a_rank_that_computes_slowly_is_slow():
    job = Job()
    job.reports[1]["arithmetic"]["matmul_ms"] = [9.0] * 7

    assert job.troubles() == [("comm.slow-rank", 1)]


@pytest.mark.parametrize(
    ("launch_ms", "core_wait_ms"),
    [
        ([30.0, 30.0, 0.2, 30.0, 30.0, 30.0, 30.0], [0.0] * 7),  # one quick repeat: it can
        ([30.0] * 7, [29.9] * 7),  # it waited for a core
        ([1.5] * 7, [0.0] * 7),  # many times as long, and yet next to nothing
    ],
)
def test_a_loaded_machine_is_no_slow_rank(launch_ms, core_wait_ms):
    job = Job()
    job.reports[2]["pace"]["all-reduce"].update(launch_ms=launch_ms, core_wait_ms=core_wait_ms)

    assert job.troubles() == []


def test_another_kind_of_device_may_take_its_time():
    job = Job()
    job.reports[1]["arithmetic"].update(matmul_ms=[9.0] * 7, device="an older CPU", group="other")

    assert job.troubles() == []


@given(st.lists(st.floats(1.0, 2.9), min_size=7, max_size=7), st.lists(st.floats(1.0, 2.9), min_size=21, max_size=21))
def test_nobody_is_slow_where_all_are_within_a_factor_of_three(mine, theirs):
    assert not clearly_slower(mine, [theirs], 0.0)


@given(st.floats(0.1, 100.0), st.lists(st.floats(0.9, 1.1), min_size=28, max_size=28))
def test_ten_times_as_slow_is_slow_at_any_scale(unit, noise):
    mine = [10 * unit * each for each in noise[:7]]
    others = [[unit * each for each in noise[7 * n : 7 * n + 7]] for n in (1, 2, 3)]

    assert clearly_slower(mine, others, 0.0)
    assert not any(clearly_slower(other, [mine, *(o for o in others if o is not other)], 0.0) for other in others)


# devices and versions


def test_two_ranks_on_one_device_are_named():
    job = Job()
    for rank in range(4):
        job.facts[rank] = facts(rank, serial="GPU-a" if rank in (1, 3) else f"GPU-{rank}", name="H200", kind="cuda")

    assert job.troubles() == [("comm.devices", None)]
    assert "ranks 1, 3 share one device" in job.what("comm.devices")


def test_a_device_without_memory_is_named():
    job = Job()
    job.facts[2]["memory"] = {"error": "OutOfMemoryError: CUDA out of memory"}

    assert ("comm.memory", 2) in job.troubles()


def test_another_version_of_nccl_is_a_problem_unless_the_settings_tell_of_it():
    job = Job(2)
    for rank in range(2):
        job.facts[rank]["versions"] = {"torch": "2.13.0", "nccl": f"2.2{rank}.3"}

    assert job.troubles() == [("comm.versions", None)]

    for rank in range(2):
        job.reports[rank]["settings"] = {"variables": {}, "switches": {}, "versions": {"NCCL": f"2.2{rank}.3"}}

    assert [code for code, _ in job.troubles()] == ["setting.equal-on-every-rank"]


# arithmetic


def test_a_wrong_value_names_the_rank_and_the_differing_digest_is_no_second_finding():
    job = Job()
    first = {"index": 3, "expected": 1.0, "actual": 2.0, "limit": 1e-6}
    job.reports[2]["arithmetic"]["tests"] = [{**TEST, "n_wrong": 1, "worst": 1e6, "digest": "bb", "first": first}]

    assert job.troubles() == [("arithmetic.burn", 2)]


def test_other_bits_within_the_bound_name_the_minority():
    job = Job()
    job.reports[3]["arithmetic"]["tests"] = [{**TEST, "digest": "bb"}]

    assert job.troubles() == [("arithmetic.among-ranks", 3)]


def test_of_two_ranks_with_other_bits_nobody_is_named():
    job = Job(2)
    job.reports[1]["arithmetic"]["tests"] = [{**TEST, "digest": "bb"}]

    assert job.troubles() == [("arithmetic.among-ranks", None)]
    assert "cannot be told" in job.what("arithmetic.among-ranks")


def test_other_hardware_may_have_other_bits():
    job = Job()
    job.reports[3]["arithmetic"].update(tests=[{**TEST, "digest": "bb"}], group="another card", device="another card")

    assert job.troubles() == []


def test_bits_that_change_from_one_repeat_to_the_next_are_a_fault():
    job = Job()
    job.reports[0]["arithmetic"]["tests"] = [{**TEST, "n_unequal": 2}]

    assert job.troubles() == [("arithmetic.repeat", 0)]


# what ranks bring along


def test_a_check_of_a_host_is_told_once_for_all_its_ranks():
    job = Job()
    own = {"code": "toolkit.nvcc", "area": "toolkits", "title": "nvcc", "status": "problem", "what": "it is old",
           "why": "", "fix": ["export PATH=/a"], "rank": None, "host": "", "evidence": {}}  # fmt: skip
    for rank in range(4):
        job.facts[rank]["host"] = f"node{rank // 2}"
        job.reports[rank]["own"] = [own]

    told = [check for check in job.judged().checks if check.code == "toolkit.nvcc"]
    assert [check.host for check in told] == ["node0", "node1"]
    assert told[0].fix == ("export PATH=/a",)


# words


def test_ranks_in_words():
    assert runs([0, 1, 2, 3, 7]) == "0-3, 7"
    assert named([2], {}) == "rank 2"
    assert named([0, 1, 4], {0: "a", 1: "a", 4: "b"}) == "ranks 0, 1 (a) and 4 (b)"
    assert named([0, 1], {0: "a", 1: "a"}) == "ranks 0, 1"
