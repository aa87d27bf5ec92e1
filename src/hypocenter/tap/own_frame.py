"""Hear of the calls of a Python function of torch from inside its own frame: nothing is wrapped, hooked or replaced.

A wrapper is one more frame: a traceback shows it, a warning's `stacklevel` counts it, and who imported the function
before has the other one. A hook makes torch take another path, with frames of its own, and is met by whatever looks at
hooks: scripting, export, fast paths. So the function stays the object it is, and its code is compiled once more from
its own source, every expression on the line and column where it was, with a call of ours before and after it.
"""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import inspect
import itertools
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

Begin = Callable[..., Any]
"""Gets all parameters of the function in their order, `*args` and `**kwargs` as tuple and dict. Gives what is called
with the result, or with RAISED, once the function ends; None: this call is of no interest. Must not raise."""

RAISED: Any = object()

PASSED_OVER = "<hypocenter, as importlib._bootstrap>"
"""A file name that makes the `stacklevel` of a warning pass over a frame, as over those of an import."""

_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_numbers = itertools.count()
_made: WeakKeyDictionary[FunctionType, tuple[CodeType, tuple[str, ...], str, CodeType]] = WeakKeyDictionary()


def hear(
    owner: Any, name: str, begin: Begin, *, like: Callable[..., Any] | None = None, rebinds: Sequence[str] = ()
) -> Callable[[], None]:
    """Hear calls of a function that is an attribute; returns the undo.

    Where no library's function stands there, or its source is missing, a wrapper is put in its place.

    Args:
        owner: a module or a class.
        begin: gets the parameters of `like`.
        like: a function with the parameters that the library's own has. None: `begin` takes any.
        rebinds: as for OwnFrame.
    """
    function = getattr(owner, name)
    try:
        if not isinstance(function, FunctionType) or not function.__code__.co_filename.startswith(_library_folders()):
            raise CannotListen(f"{name} is somebody else's")
        if like is not None and _names_of(function.__code__) != tuple(inspect.signature(like).parameters):
            raise CannotListen(f"{name} has other parameters in this version")
        frame = OwnFrame(function, begin, rebinds=rebinds)
        frame.listen()
    except CannotListen:
        return _wrap(owner, name, begin, like, rebinds)
    return frame.stop


def passed_over(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a wrapper so that the `stacklevel` of a warning passes over it, and return it."""
    assert isinstance(wrapper, FunctionType)
    wrapper.__code__ = wrapper.__code__.replace(co_filename=PASSED_OVER)
    return wrapper


def leave_out(error: BaseException) -> None:
    """Take the frame that caught an exception out of its traceback; the bare `raise` that follows adds none."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def _library_folders() -> tuple[str, ...]:
    torch = sys.modules.get("torch")
    found = [_STANDARD_LIBRARY, *(getattr(torch, "__path__", None) or ())]
    return tuple(folder + os.sep for folder in found)


def _names_of(code: CodeType) -> tuple[str, ...]:
    n_variadic = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + n_variadic]


def _wrap(
    owner: Any, name: str, begin: Begin, like: Callable[..., Any] | None, rebinds: Sequence[str]
) -> Callable[[], None]:
    original, own = getattr(owner, name), vars(owner).get(name)
    bind = _binder(inspect.signature(like)) if like is not None else None

    @passed_over
    def call(*args: Any, **kwargs: Any) -> Any:
        if bind is None:
            end = begin(*args, *kwargs.values())
        else:
            try:
                given = bind(args, kwargs)
            except TypeError:
                return original(*args, **kwargs)
            end = begin(*given.arguments.values())
            given.arguments.update(zip(rebinds, getattr(end, "rebound", ()), strict=False))
            args, kwargs = given.args, given.kwargs
        result = RAISED
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        finally:
            if end is not None:
                end(result)
        return result

    functools.update_wrapper(call, original)
    setattr(owner, name, call)

    def undo() -> None:
        if vars(owner).get(name) is not call:  # somebody may have patched on top of us: then leave theirs
            return
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    return undo


@dataclass(slots=True)
class _Given:
    """Bound arguments like those of `inspect.BoundArguments`, of parameters that may all be given by place."""

    arguments: dict[str, Any]

    @property
    def args(self) -> tuple[Any, ...]:
        return tuple(self.arguments.values())

    @property
    def kwargs(self) -> dict[str, Any]:
        return {}


def _binder(
    signature: inspect.Signature,
) -> Callable[[tuple[Any, ...], dict[str, Any]], inspect.BoundArguments | _Given]:
    """Return a function that binds arguments with defaults, or raises TypeError: 30 µs faster than `inspect`."""

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return given

    parameters = signature.parameters
    if any(each.kind is not each.POSITIONAL_OR_KEYWORD for each in parameters.values()):
        return bind
    names = tuple(parameters)
    blank = {name: each.default for name, each in parameters.items()}
    n_needed = sum(each.default is each.empty for each in parameters.values())

    def bind_by_place(args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments | _Given:
        n = len(args)
        is_plain = n <= len(names) and kwargs.keys().isdisjoint(names[:n]) and kwargs.keys() >= {*names[n:n_needed]}
        given = {**blank, **dict(zip(names, args, strict=False)), **kwargs}
        return _Given(given) if is_plain and len(given) == len(names) else bind(args, kwargs)

    return bind_by_place


class CannotListen(Exception):
    """Raised when the function is not written in Python, or its source is missing or is not what runs."""


class OwnFrame:
    """A listener to the calls of a function of torch, from `listen` on until `stop`."""

    def __init__(self, function: FunctionType, begin: Begin, *, rebinds: Sequence[str] = ()) -> None:
        """Prepare to listen; nothing is changed yet.

        Args:
            function: any function written in Python, also one made by a decorator.
            rebinds: parameters that get other values for the call: the attribute `rebound` of what `begin` gives.
        """
        self.begin, self.is_mute = begin, False
        self._function, self._rebinds = function, tuple(rebinds)
        self._told: _Told | None = None

    def listen(self) -> None:
        """Start to listen to calls.

        Raises:
            CannotListen: nothing can be heard of this function.
        """
        known = next((each for each in _listening if each.function is self._function), None)
        self._told = known or _Told(self._function, self._rebinds)
        self._told.hearers.append(self)
        self._told.update()

    def stop(self) -> None:
        """Stop listening; when nobody listens any more the function has its own code again."""
        told, self._told = self._told, None
        if told is not None:
            told.hearers.remove(self)
            told.update()

    def mute(self, *, is_mute: bool) -> None:
        """Switch listening off or on for a while; while it is off a call costs one test."""
        if is_mute != self.is_mute:
            self.is_mute = is_mute
            if self._told is not None:
                self._told.update_hearers()


class _Told:
    """A function that somebody listens to."""

    def __init__(self, function: FunctionType, rebinds: tuple[str, ...]) -> None:
        self.function, self.hearers = function, list[OwnFrame]()
        self._globals = function.__globals__
        self._before = function.__code__
        names = _names_of(self._before)
        self._places = [names.index(name) for name in rebinds]
        self._name, self._code = _made_for(function, rebinds)

    def update(self) -> None:
        """Put our code into the function, or its own back unless somebody has put in another one since."""
        if self.hearers and self not in _listening:
            _listening.append(self)
            self._globals.setdefault("_hypocenter_raised", RAISED)
            torch: Any = sys.modules.get("torch")
            is_compiling = torch.compiler.is_compiling if torch is not None else bool
            self._globals.setdefault("_hypocenter_is_compiling", is_compiling)
            self._globals[self._name] = None
            self.function.__code__ = self._code
        elif not self.hearers and self in _listening and self.function.__code__ is self._code:
            _listening.remove(self)
            self.function.__code__ = self._before
            del self._globals[self._name]
            return
        self.update_hearers()

    def update_hearers(self) -> None:
        """Set who is to be asked at a call."""
        if len(self.hearers) == 1:  # as of most functions, twice for each call of an outermost module
            self._globals[self._name] = None if self.hearers[0].is_mute else self.hearers[0].begin
            return
        begins: list[Begin] = []
        for each in self.hearers:
            if not each.is_mute:
                begins.append(each.begin)  # noqa: PERF401 (a comprehension is a call, and this runs at each step)
        several = _AllOf(begins, self._places) if len(begins) > 1 else None
        self._globals[self._name] = several or next(iter(begins), None)


_listening: list[_Told] = []


class _AllOf:
    """What is called when several listen to one function.

    Args:
        places: of the arguments that get other values: who comes next is given those of who came before.
    """

    def __init__(self, begins: Sequence[Begin], places: Sequence[int]) -> None:
        self._begins, self._places = begins, places

    def __call__(self, *given: Any) -> _Ends | None:
        ends: list[Any] = []
        now, rebound = list(given), None
        for begin in self._begins:
            end = begin(*now)
            if end is not None:
                ends.append(end)
                rebound = getattr(end, "rebound", None) or rebound
                for place, value in zip(self._places, rebound or (), strict=False):
                    now[place] = value
        return _Ends(ends, rebound) if ends else None


class _Ends:
    def __init__(self, ends: Sequence[Any], rebound: tuple[Any, ...] | None) -> None:
        self._ends, self.rebound = ends, rebound

    def __call__(self, result: Any) -> None:
        for end in reversed(self._ends):
            end(result)


BESIDE_TORCH: tuple[Callable[..., Any], ...] = (_AllOf.__call__, _Ends.__call__)
"""Functions that run where torch.compile watches which functions run."""


def _made_for(function: FunctionType, rebinds: tuple[str, ...]) -> tuple[str, CodeType]:
    """Return the global's name that says who listens, and the code that asks it: made once (6 ms) for all sessions."""
    known = _made.get(function)
    if known is None or known[0] is not function.__code__ or known[1] != rebinds:
        name = f"_hypocenter_{next(_numbers)}"
        known = _made[function] = function.__code__, rebinds, name, _compiled(function, name, rebinds)
    return known[2], known[3]


def _compiled(function: FunctionType, name: str, rebinds: tuple[str, ...]) -> CodeType:
    code = function.__code__
    tree = _tree(function)
    if _shape(_code_of(code, tree)) != _shape(code):
        raise CannotListen(f"{function.__qualname__}: its source is not what runs")
    defined = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == code.co_name)
    defined.body = _telling(defined, name, rebinds)
    made = _code_of(code, ast.fix_missing_locations(tree))
    if made.co_freevars != code.co_freevars:
        raise CannotListen(f"{function.__qualname__}: it closes over other names than its source")
    return made.replace(co_qualname=code.co_qualname) if sys.version_info >= (3, 11) else made


def _tree(function: FunctionType) -> ast.Module:
    """Return the syntax tree of the function and what it needs around it, at the lines and columns of its file."""
    code = function.__code__
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError) as error:
        raise CannotListen(f"{function.__qualname__}: its source is not there") from error
    around: list[str] = []
    if lines[0][:1] in " \t":
        within = function.__qualname__.split(".")[-2:-1]
        is_method = bool(within) and within[0].isidentifier()
        around = [f"class {within[0]}:\n" if is_method else f"def _around({', '.join(code.co_freevars)}):\n"]
    try:
        tree = ast.parse("".join([*around, *lines]))
    except SyntaxError as error:
        raise CannotListen(f"{function.__qualname__}: its source is no function") from error
    return ast.increment_lineno(tree, first - 1 - len(around))


def _code_of(wanted: CodeType, tree: ast.Module) -> CodeType:
    """Return the function's code from its compiled tree; the function is never defined again."""
    flags = wanted.co_flags & __future__.annotations.compiler_flag
    waiting = [compile(tree, wanted.co_filename, "exec", flags=flags, dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        if (code.co_name, code.co_firstlineno) == (wanted.co_name, wanted.co_firstlineno):
            return code
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    raise CannotListen(f"{wanted.co_name} is not in its source")


def _shape(code: CodeType) -> tuple[Any, ...]:
    """Return what two compilations of one source have in common, whatever is imported around it."""
    return code.co_names, code.co_varnames, code.co_freevars, {line for *_, line in code.co_lines()}


def _telling(defined: ast.FunctionDef, name: str, rebinds: tuple[str, ...]) -> list[ast.stmt]:
    """Return the body twice: as it is for calls of no interest, and between statements that tell of the call."""
    body = defined.body[1:] if ast.get_docstring(defined, clean=False) is not None else defined.body
    given = ", ".join(rebinds)
    (choice,) = ast.parse(
        f"if {name} is None or _hypocenter_is_compiling() or "
        f"(_hypocenter_end := {name}({', '.join(_parameters(defined.args))})) is None:\n"
        "    pass\n"
        "else:\n"
        + (f"    {given}, = getattr(_hypocenter_end, 'rebound', None) or ({given},)\n" if rebinds else "")
        + "    _hypocenter_result = _hypocenter_raised\n"
        "    try:\n"
        "        _hypocenter_result = None\n"
        "    finally:\n"
        "        _hypocenter_end(_hypocenter_result)\n"
    ).body
    assert isinstance(choice, ast.If)
    attempt = choice.orelse[-1]
    assert isinstance(attempt, ast.Try)
    for node in ast.walk(choice):
        if hasattr(node, "lineno"):
            ast.copy_location(node, body[0])
    attempt.body[:0] = [each for statement in copy.deepcopy(body) for each in _Returns().told(statement)]
    choice.body = list(body)
    return [choice]


def _parameters(given: ast.arguments) -> Iterator[str]:
    for each in (*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg):
        if each is not None:
            yield each.arg


class _Returns(ast.NodeTransformer):
    """Rewrites `return VALUE` to `_hypocenter_result = VALUE; return _hypocenter_result`."""

    def told(self, statement: ast.stmt) -> list[ast.stmt]:
        made: Any = self.visit(statement)
        return made if isinstance(made, list) else [made]

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        value = node.value or ast.Constant(None)
        keep = ast.Assign([ast.Name("_hypocenter_result", ast.Store())], value)
        leave = ast.Return(ast.Name("_hypocenter_result", ast.Load()))
        return [ast.fix_missing_locations(ast.copy_location(each, node)) for each in (keep, leave)]

    def _inner(self, node: ast.AST) -> ast.AST:
        return node  # what a function inside returns is not the result

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = _inner
