"""What a faulty device explains is told under it; what the program did stands by itself."""

from dataclasses import replace

from hypocenter.diagnose.group import Folded
from hypocenter.diagnose.ranks import LASTING, with_device
from hypocenter.nouns import Finding

FAULT = Finding(
    code="HC341", kind="hardware", severity="error", title="rank 1 computed something once", step=5, rank=1,
    cause="hardware-fault",
)  # fmt: skip
SPIKE = Finding(code="HC313", kind="spike", severity="error", title="a local gradient is far out", step=5, rank=1)
NAN = Finding(code="HC102", kind="nonfinite", severity="error", title="the loss is not finite", step=6, rank=0)


def told(*findings):
    return [f.finding for f in with_device([Folded(finding=f, is_located=True) for f in findings])]


def test_without_a_device_nothing_changes():
    assert told(SPIKE, NAN) == [SPIKE, NAN]


def test_what_follows_is_folded_under_the_device():
    (first,) = told(SPIKE, FAULT, NAN)

    assert first.code == "HC341"
    assert [line.partition(":")[0] for line in first.then] == ["step 5, rank 1", "step 6, rank 0"]


def test_a_cause_of_the_program_stands_by_itself():
    batch = replace(NAN, step=5, cause="bad-input")

    assert [f.code for f in told(batch, FAULT)] == ["HC341", "HC102"]


def test_long_after_a_single_flip_it_explains_nothing():
    late = replace(NAN, step=FAULT.step + LASTING + 1)

    assert told(FAULT, late) == [FAULT, late]
    broken = replace(FAULT, code="HC342")
    assert [f.code for f in told(broken, late)] == ["HC342"]


def test_what_came_before_is_not_its_doing():
    early = replace(NAN, step=4)

    assert told(early, FAULT) == [early, FAULT]


def test_the_bundle_of_what_it_explains_is_kept():
    (first,) = told(FAULT, replace(NAN, step=5, bundle="rank-00001/bundles/x"))

    assert first.bundle == "rank-00001/bundles/x"
