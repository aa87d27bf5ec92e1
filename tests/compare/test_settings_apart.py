"""What is set in another way is said also where values agree."""

from __future__ import annotations

from hypocenter.compare.comparison import Pair, Spot
from hypocenter.compare.outcome import settings_apart
from hypocenter.record.facts_file import Facts, ModuleFacts


def pair(site, by="exact"):
    spot = Spot(phase="forward", site=site, port="out[0]")
    return Pair(baseline=(spot,), candidate=(spot,), by=by)


def facts(*modules):
    return Facts(modules=modules)


def test_another_class_another_function_and_another_number():
    ours = facts(
        ModuleFacts(path="act", kind="GELU"), ModuleFacts(path="mlp", functions={"act": "gelu"}),
        ModuleFacts(path="norm", attributes={"eps": 1e-5, "size": 4}),
    )  # fmt: skip
    theirs = facts(
        ModuleFacts(path="act", kind="QuickGELU"), ModuleFacts(path="mlp", functions={"act": "silu"}),
        ModuleFacts(path="norm", attributes={"eps": 1e-6, "size": 4}),
    )  # fmt: skip

    (note,) = settings_apart([pair("act"), pair("mlp"), pair("norm")], (ours, theirs))

    assert "act is GELU in the baseline and QuickGELU in the candidate" in note
    assert "act of mlp is gelu in the baseline and silu in the candidate" in note
    assert "eps of norm is 1e-05 in the baseline and 1e-06 in the candidate" in note
    assert "size" not in note


def test_nothing_where_all_is_set_alike_or_nothing_is_known():
    same = facts(ModuleFacts(path="act", kind="GELU", attributes={"eps": 1.0}))

    assert settings_apart([pair("act")], (same, same)) == ()
    assert settings_apart([pair("act")], (None, same)) == ()


def test_modules_of_another_naming_are_not_compared():
    sides = facts(ModuleFacts(path="act", kind="GELU")), facts(ModuleFacts(path="act", kind="Act"))

    assert settings_apart([pair("act", by="renamed")], sides) == ()


def test_only_some_are_named():
    ours, theirs = (facts(*(ModuleFacts(path=str(i), kind=kind) for i in range(9))) for kind in ("A", "B"))

    (note,) = settings_apart([pair(str(i)) for i in range(9)], (ours, theirs))

    assert note.endswith("; and 6 more")
