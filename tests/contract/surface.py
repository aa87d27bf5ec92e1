"""What others can depend on, as lines of text: names, options, commands, flags, exit codes, columns, JSON keys.

`python tests/contract/surface.py --write` makes today's surface the frozen one (surface.txt). Do that in the commit
that means to change it, and say so in a `news/` fragment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

FROZEN = Path(__file__).with_name("surface.txt")


def lines() -> list[str]:
    """Today's surface, sorted."""
    return sorted([*_exports(), *_options(), *_commands(), *_exit_codes(), *_columns(), *_diagnosis(), *_answers()])


def _exports() -> Iterator[str]:
    import hypocenter

    for name in hypocenter.__all__:
        yield f"export hypocenter.{name}"


def _options() -> Iterator[str]:
    from hypocenter.config import Config

    for field in fields(Config):
        yield f"option {field.name} = {field.default!r}"


def _commands() -> Iterator[str]:
    """Commands with their flags and arguments, as click knows them."""
    import click

    def walk(command: click.Command, path: str) -> Iterator[str]:
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                yield f"command {path} <{parameter.name}>"
            else:
                yield f"command {path} {' '.join((*parameter.opts, *parameter.secondary_opts))}"
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                yield f"command {path} {name}"
                child = command.get_command(context, name)
                assert child is not None, name
                yield from walk(child, f"{path} {name}")

    cli = import_module("hypocenter.cli")
    groups = [value for value in vars(cli).values() if isinstance(value, click.Group)]
    assert groups, "hypocenter.cli has no click group"
    yield from walk(groups[0], "hypocenter")


def _exit_codes() -> Iterator[str]:
    from hypocenter.errors import HypocenterError

    def walk(error: type[HypocenterError]) -> Iterator[str]:
        yield f"error {error.slug} exits {error.exit_code}"
        for child in error.__subclasses__():
            if child.__module__ == HypocenterError.__module__:
                yield from walk(child)

    yield from walk(HypocenterError)


def _columns() -> Iterator[str]:
    from hypocenter.record.schema import READINGS, STEPS

    for table, schema in (("readings", READINGS), ("steps", STEPS)):
        for field in schema:
            yield f"column {table}.{field.name} {field.type}{' or null' if field.nullable else ''}"


def _diagnosis() -> Iterator[str]:
    """The keys of a diagnosis as it is written, with every optional part present."""
    from hypocenter.json_answer import to_json
    from hypocenter.nouns import CAUSES, KINDS, Coords, Diagnosis, Finding, Remedy, Source

    finding = Finding(
        code="HC101", kind="nonfinite", severity="error", title="t", step=1, coords=Coords(tp=0),
        source=Source(file="f", line=1), remedy=Remedy(action="a"),
    )  # fmt: skip
    diagnosis = json.loads(to_json(Diagnosis(run="r", status="findings", findings=(finding,))))
    yield f"diagnosis schema = {diagnosis['schema']}"
    yield from (f"diagnosis {key}" for key in _keys(diagnosis))
    yield from (f"cause {cause}" for cause in CAUSES)
    yield from (f"kind {kind}" for kind in KINDS)


def _answers() -> Iterator[str]:
    """The keys of every published answer, and what may stand there."""
    from hypocenter.cli.commands.schema import ANSWERS, schema_of

    for name in ANSWERS:
        schema = schema_of(name)
        found: dict[str, set[str]] = {}
        _note_types(schema, dict(schema.get("$defs", {})), "", found)
        for path, kinds in found.items():
            yield f"answer {name} {path}: {' or '.join(sorted(kinds))}"


def _note_types(part: Any, unseen: dict[str, Any], path: str, found: dict[str, set[str]]) -> None:
    """What may stand at each path of a schema; what stands at several is told where it is first."""
    name = part.get("$ref", "").rpartition("/")[2]
    if name in unseen:
        _note_types(unseen.pop(name), unseen, path, found)
    values = {"null" if value is None else repr(value) for value in part.get("enum", ())}
    kinds = part.get("type", ())
    if path and (kinds or values):
        found.setdefault(path, set()).update(values or ({kinds} if isinstance(kinds, str) else kinds))
    for key, inner in part.get("properties", {}).items():
        _note_types(inner, unseen, f"{path}.{key}".lstrip("."), found)
    for inner in (*part.get("anyOf", ()), *part.get("prefixItems", ())):
        _note_types(inner, unseen, path, found)
    for word, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(part.get(word), dict):
            _note_types(part[word], unseen, f"{path}{mark}", found)


def _keys(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}{key}"
            yield from _keys(inner, f"{path}{key}.")
    elif isinstance(value, list):
        for inner in value[:1]:
            yield from _keys(inner, f"{path.rstrip('.')}[].")


def main() -> None:
    """Print the surface, or write it with --write."""
    text = "\n".join(lines()) + "\n"
    if "--write" in sys.argv[1:]:
        FROZEN.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
