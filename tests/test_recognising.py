"""Which reader is taken, and what is said where none is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hypocenter.catalogue import Catalogue
from hypocenter.errors import NoRecordingError, UnknownNameError
from hypocenter.recognising import Recogniser, by_name, recognised, unknown


def readers(**sure: float) -> Catalogue[Recogniser]:
    """Readers that are as sure as given, whatever they see."""
    found: Catalogue[Recogniser] = Catalogue("hypocenter.optimizers")
    found._loaded.add(found.package)
    for name, number in sure.items():
        found.register(name, SimpleNamespace(accepts=lambda _, number=number: number))
    return found


def test_the_surest_is_taken_and_of_several_that_are_certain_the_first() -> None:
    some = readers(a=0.5, b=0.9, c=0.9)
    certain = readers(a=0.5, b=True, c=1.0)

    assert recognised(some, None) is some.entries()["b"]
    assert recognised(certain, None) is certain.entries()["b"]
    assert recognised(readers(a=0.0, b=False), None) is None


def test_the_error_lists_what_was_looked_for() -> None:
    said = unknown(NoRecordingError, "kind of log", readers(csv=0.0, jsonl=0.0), where="a.txt", fix="name it")

    assert str(said) == (
        "error[no-recording]: nobody knows what kind of log this is\n"
        "  --> a.txt\n   = why: it looks like none of: csv, jsonl\n   = fix: name it"
    )


def test_a_name_that_nobody_has_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="no kind of log is called 'excel'"):
        by_name(readers(csv=0.0), "excel", "kind of log", "--kind")
