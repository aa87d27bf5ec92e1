"""The table of what an agent may ask: commands with those of their parameters that only read.

A tool is made of a command as click knows it: its words are the command's help, its arguments the command's parameters,
and a call is the command itself, run in this process with `--json`. Nothing is told here a second time.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import click

from hypocenter.cli.agents.roots import allowed
from hypocenter.cli.entry import main
from hypocenter.cli.exit_codes import MEANINGS
from hypocenter.cli.group import hypocenter
from hypocenter.errors import ConfigError, HypocenterError, UnknownNameError

_ANSWERS = frozenset({0, 1, 5})  # exit codes that come with an answer
_MOST_NOTES = 20  # lines of what was said beside the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A command that agents may ask.

    Attributes:
        parameters: of the command, by the names of its function; none that writes a file, loads code or draws.
        required: of those that the command can do without, what an agent has to say.
        fixed: words that every call has.
        is_read_only: false for one that keeps what it found in the recording.
    """

    command: str
    parameters: tuple[str, ...]
    required: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    is_read_only: bool = True


TOOLS = (
    Tool(command="runs", parameters=("folder",), required=("folder",)),
    Tool(command="check", parameters=("run",), required=("run",), fixed=("--fail-on=warning",), is_read_only=False),
    Tool(
        command="show",
        parameters=("run", "site", "step", "rank", "n_frames", "as_values", "as_diary", "as_ranks", "query"),
    ),
    Tool(command="explain", parameters=("name",)),
    Tool(command="list", parameters=()),
    Tool(command="diff", parameters=("baseline", "candidate", "noise", "budget", "steps", "site", "as_values")),
    Tool(command="curves", parameters=("baseline", "candidate", "noise", "offset", "limits")),
    Tool(command="spikes", parameters=("run",)),
    Tool(command="health", parameters=("run",)),
    Tool(command="relations", parameters=("run",)),
    Tool(command="headroom", parameters=("run", "format_names", "scale", "phases", "site", "step", "steps", "rank")),
    Tool(command="cure", parameters=("run",), fixed=("--no-rerun",)),  # a recording says what to run: not from here
    Tool(command="replay", parameters=("bundle",)),  # operators of torch only, on inputs that it holds
)
PAGING: dict[str, dict[str, Any]] = {
    "at": {
        "type": "string",
        "description": "JSON Pointer of the part of the answer to give; take it from `cut`. The whole if not given.",
    },
    "start": {"type": "integer", "minimum": 0, "description": "Items of that part that you have; from `cut` too."},
}


@functools.cache
def command_of(tool: Tool) -> click.Command:
    """Return the command of a tool as click knows it."""
    found = hypocenter.get_command(click.Context(hypocenter), tool.command)
    assert found is not None, tool.command
    return found


def described(tool: Tool) -> str:
    """Return the help of a tool's command, as paragraphs."""
    return "\n\n".join(" ".join(part.split()) for part in (command_of(tool).help or "").split("\n\n"))


def input_schema(tool: Tool) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments."""
    offered = _offered(tool)
    needed = [name for name, one in offered.items() if one.required or one.name in tool.required]
    return {
        "type": "object",
        "properties": {name: _schema(one) for name, one in offered.items()} | PAGING,
        "required": needed,
        "additionalProperties": False,
    }


def _offered(tool: Tool) -> dict[str, click.Parameter]:
    """Return a tool's parameters by the names that an agent uses: those of the flags, without dashes."""
    known = {one.name: one for one in command_of(tool).params}
    return {_asked_as(known[name]): known[name] for name in tool.parameters}


def _asked_as(one: click.Parameter) -> str:
    flags = [flag for flag in one.opts if flag.startswith("--")]
    return flags[0].removeprefix("--").replace("-", "_") if flags else str(one.name)


def _schema(one: click.Parameter) -> dict[str, Any]:
    kind = one.type
    found: dict[str, Any] = {"type": "string"}
    if isinstance(kind, click.types.BoolParamType):
        found = {"type": "boolean"}
    elif isinstance(kind, (click.types.IntParamType, click.IntRange)):
        least = kind.min if isinstance(kind, click.IntRange) else None
        found = {"type": "integer"} | ({"minimum": least} if least is not None else {})
    elif isinstance(kind, click.types.FloatParamType):
        found = {"type": "number"}
    elif isinstance(kind, click.Choice):
        found["enum"] = [str(choice) for choice in kind.choices]
    if one.multiple:
        found = {"type": "array", "items": found}
    return found | {"description": _about(one)}


def _about(one: click.Parameter) -> str:
    said = one.help if isinstance(one, click.Option) else None
    place = "A path below the folders that this server may read." if isinstance(one.type, click.Path) else ""
    return " ".join(part for part in (said, place) if part) or f"{one.make_metavar(click.Context(hypocenter))}"


def call(name: str, arguments: Mapping[str, Any], roots: Sequence[Path]) -> dict[str, Any]:
    """Run a tool's command and return a page of its answer.

    Args:
        name: of the tool.
        arguments: as `input_schema` has them.
        roots: resolved folders below which may be read.

    Returns:
        `exit_code`, `means`, `answer` (the command's JSON, or the part that was asked for), `cut` (what is left, with
        `at` and `start` to ask for it) and `notes` (what was said beside it, of damaged recordings above all).

    Raises:
        HypocenterError: there is no such tool or argument, something may not be read, or the command refused.
    """
    tool = next((one for one in TOOLS if one.command == name), None)
    if tool is None:
        raise UnknownNameError(f"no tool {name!r}", why=f"there are {', '.join(one.command for one in TOOLS)}")
    asked = dict(arguments)
    at, start = asked.pop("at", ""), asked.pop("start", 0)
    if not isinstance(at, str) or not isinstance(start, int):
        raise ConfigError("`at` is a text and `start` a whole number", where=name)
    code, out, err = _run([tool.command, *_words(tool, asked, roots)])
    answer = _decoded(out)
    if code not in _ANSWERS or (isinstance(answer, dict) and answer.get("status") == "error"):
        raise _told(answer, err, code)
    found = page(answer, at=at, start=start)
    lines = [line for line in err.splitlines() if line and not line.startswith(("next:", "checking "))]
    return {
        "exit_code": code,
        "means": MEANINGS[code],
        "answer": found.value,
        "cut": [asdict(cut) for cut in found.cut],
        "notes": lines[:_MOST_NOTES],
    }


def _words(tool: Tool, asked: Mapping[str, Any], roots: Sequence[Path]) -> Iterator[str]:
    """Yield the command line: options first, then, behind `--`, what has no flag (no value can be taken for a flag)."""
    offered = _offered(tool)
    for name in asked:
        if name not in offered:
            raise UnknownNameError(
                f"no argument {name!r}", where=tool.command, why=f"there are {', '.join([*offered, *PAGING])}"
            )
    yield from (*tool.fixed, "--json")
    positional: list[str] = []
    for name, one in offered.items():
        for value in _values(one, asked.get(name), name):
            text = str(allowed(value, roots)) if isinstance(one.type, click.Path) else value
            if isinstance(one, click.Argument):
                positional.append(text)
            else:
                yield one.opts[0] if one.is_flag else f"{one.opts[0]}={text}"  # type: ignore[attr-defined]
        if name not in asked and (one.required or one.name in tool.required):
            raise ConfigError(f"{name!r} is missing", where=tool.command, fix="name it")
    yield from ("--", *positional)


def _values(one: click.Parameter, value: Any, name: str) -> list[str]:
    if value is None or value is False:
        return []
    values = cast(list[Any], value) if one.multiple and isinstance(value, list) else [value]
    if any(isinstance(each, (list, dict)) for each in values):
        raise ConfigError(f"{name!r} is one text, number or truth", where=repr(value)[:100])
    return [str(each) for each in values]


def _run(words: list[str]) -> tuple[int, str, str]:
    """Run the command in this process: exit code, stdout, stderr. Not in two threads at once: stdout is one."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _told(answer: Any, err: str, code: int) -> HypocenterError:
    """Return the error of a command, as it was told in JSON."""
    if isinstance(answer, dict):
        told = cast(dict[str, str], answer)
        return HypocenterError(told["what"], where=told["where"], why=told["why"], fix=told["fix"])
    lines = err.strip().splitlines()
    return HypocenterError(lines[-1] if lines else f"the command ended with {code} and said nothing")


def sentence(error: HypocenterError) -> str:
    """Return an error in one line: what, where, why, and what to do."""
    text = f"{error.what}: {error.where}" if error.where else error.what
    text += f" ({error.why})" if error.why else ""
    text += f"; {error.fix}" if error.fix else ""
    return " ".join(text.split())


MOST_CHARACTERS = 20_000  # of an answer as JSON: about 6,000 tokens
_LEAST = 200  # characters below which a part is left out, to be asked for
_FEW_KEYS = 32  # of an object all of whose keys are shown; others are cut as lists are


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A list, an object or a text of which not all was given: the rest begins at `start`, of `of` items."""

    at: str  # a JSON Pointer (RFC 6901) into the whole answer
    start: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The part of a value that fits, and what was cut from it."""

    value: Any
    cut: list[Cut] = field(default_factory=list)


def page(value: Any, *, at: str = "", start: int = 0, most: int = MOST_CHARACTERS) -> Page:
    """Return the part of a value at a place, from an item on, as much as fits.

    Args:
        value: what `json.loads` gives.
        at: a JSON Pointer into it; empty for the whole.
        start: items of the list, keys of the object or characters of the text that were given before.
        most: characters, about.

    Raises:
        ConfigError: nothing stands there.
    """
    found = Page(value=None)
    part = _part(value, at)
    if start < 0 or (start and start >= _length(part)):
        raise ConfigError(f"nothing begins at {start}", where=f"at {at!r}", why=f"it has {_length(part)} items")
    return Page(value=_fitted(part, at, start, max(most, _LEAST), found.cut), cut=found.cut)


def _part(value: Any, at: str) -> Any:
    for word in at.split("/")[1:] if at else ():
        key = word.replace("~1", "/").replace("~0", "~")
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise ConfigError(
                "the answer has no such part", where=f"at {at!r}", fix="take one from `cut`, or leave `at` out"
            ) from error
    if at and not at.startswith("/"):
        raise ConfigError("this is no JSON Pointer", where=f"at {at!r}", fix="such as /findings/0/why")
    return value


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (list, dict, str)) else 1


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False))


def _fitted(value: Any, at: str, start: int, room: int, cut: list[Cut]) -> Any:
    if not isinstance(value, (str, list, dict)) or (not start and _size(value) <= room):
        return value
    if room < _LEAST:
        cut.append(Cut(at=at, start=start, of=len(value)))
        return type(value)()
    if isinstance(value, str):
        return _of_text(value, at, start, room, cut)
    if isinstance(value, list):
        items = [(str(index), item) for index, item in enumerate(cast(list[Any], value))]
        return [item for _, item in _first(items, at, start, room, cut)]
    found = cast(dict[str, Any], value)
    if start or len(found) > _FEW_KEYS:
        return dict(_first(list(found.items()), at, start, room, cut))
    return _shared(found, at, room, cut)


def _of_text(value: str, at: str, start: int, room: int, cut: list[Cut]) -> str:
    end = start + room
    while _size(value[start:end]) > room + 2:  # what is escaped takes more
        end = start + (end - start) // 2
    if end < len(value):
        cut.append(Cut(at=at, start=end, of=len(value)))
    return value[start:end]


def _first(
    items: Sequence[tuple[str, Any]], at: str, start: int, room: int, cut: list[Cut]
) -> Iterator[tuple[str, Any]]:
    """Yield whole items as long as they fit; the first of a page in any case, cut inside where it does not fit."""
    for index in range(start, len(items)):
        key, value = items[index]
        size = _size(value) + len(key) + 6
        if index > start and size > room:
            cut.append(Cut(at=at, start=index, of=len(items)))
            return
        yield key, _fitted(value, f"{at}/{_escaped(key)}", 0, room, cut)
        room -= size


def _shared(value: Mapping[str, Any], at: str, room: int, cut: list[Cut]) -> dict[str, Any]:
    """Return small parts whole; the large ones share the room that is left."""
    shares: dict[str, int] = {}
    for n_left, key in zip(range(len(value), 0, -1), sorted(value, key=lambda key: _size(value[key])), strict=True):
        shares[key] = room // n_left
        room -= min(_size(value[key]), shares[key]) + len(key) + 6
    return {key: _fitted(inner, f"{at}/{_escaped(key)}", 0, shares[key], cut) for key, inner in value.items()}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
