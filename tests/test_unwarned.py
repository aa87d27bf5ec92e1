"""What Hypocenter does in between leaves Python's memory of shown warnings as it was."""

from __future__ import annotations

import warnings

from hypocenter.unwarned import still_shown, unwarned


def warn(text: str) -> None:
    warnings.warn(text, stacklevel=1)


def ignore_for_a_moment() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")


def test_within_it_nothing_is_said_and_afterwards_nothing_is_said_again():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        warn("one")
        with unwarned():
            warn("two")
        warn("one")
        warn("two")

    assert [str(each.message) for each in said] == ["one", "two"]


def test_an_error_is_not_raised_within_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with unwarned():
            warn("none")


def test_filters_that_others_changed_for_a_moment_are_no_reason_to_say_it_again():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        warn("one")
        still_shown(ignore_for_a_moment, (), {})
        warn("one")

    assert len(said) == 1


def test_filters_that_were_changed_for_good_count_from_then_on():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        warn("one")
        still_shown(warnings.filterwarnings, ("always",), {})
        warn("one")

    assert len(said) == 2
