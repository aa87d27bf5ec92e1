"""Where mininet is listened to: methods of its classes, the user's names, and where an operator runs."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Generator
from typing import Any

import mininet as mn

from hypocenter.replay.place import Place
from hypocenter.session.guard import guarded
from hypocenter.tap import source
from hypocenter.tap.patches import Patches

Hearing = Generator[None, Any, Any]
LOSS = Place(phase="loss", site="loss")


class Names:
    """The user's names: attribute paths. Nothing in front of the first model, its class in front of each other one."""

    def __init__(self) -> None:
        self.modules: weakref.WeakKeyDictionary[mn.Module, str] = weakref.WeakKeyDictionary()
        self._parameters: weakref.WeakKeyDictionary[mn.Parameter, str] = weakref.WeakKeyDictionary()

    def add_root(self, model: mn.Module) -> None:
        """Name a model and all in it."""
        prefix = type(model).__name__ if self.modules else ""
        for path, module in model.named_modules(prefix):
            self.modules.setdefault(module, path)
        for path, parameter in model.named_parameters(prefix):
            self._parameters.setdefault(parameter, path)

    def parameters(self) -> list[tuple[str, mn.Parameter]]:
        """In the order of the models."""
        return [(path, parameter) for parameter, path in self._parameters.items()]

    def roots(self) -> list[mn.Module]:
        return list(self.modules)

    def label(self, parameter: mn.Parameter) -> str:
        """What a parameter is called in rows."""
        return self._parameters.get(parameter, "parameter outside the model")


class Listener:
    """Hears mininet. Of each tapped method there is a generator, which is given what the method gave at its `yield`.

    Attributes:
        modules: whose calls are under way, the outermost first.
        here: where the operator under way runs.
        incoming: in backward, the gradient that its node was given.
        was: in a replay, where an operator outside of modules ran in the program.
    """

    is_off, is_placing = False, True

    def __init__(self, names: Names) -> None:
        self.names = names
        self.modules: list[mn.Module] = []
        self.here, self.incoming, self.was = LOSS, None, None
        self._places: weakref.WeakKeyDictionary[mn.Node, Place] = weakref.WeakKeyDictionary()

    @guarded
    def begin(self, event: str, *given: Any, **options: Any) -> Hearing | None:
        """A tapped method is called."""
        hearing = getattr(self, event)(*given, **options)
        next(hearing)
        return hearing

    @guarded
    def end(self, hearing: Hearing, out: Any) -> None:
        """It has returned."""
        with contextlib.suppress(StopIteration):
            hearing.send(out)

    def switch_off(self, reason: str, error: BaseException) -> None:
        """A replay fails as a whole."""
        raise error

    def other(self, *_: Any, **__: Any) -> Hearing:
        """Of no interest."""
        yield

    compute = backward = update = other

    def call(self, module: mn.Module, *args: Any, **kwargs: Any) -> Hearing:
        """A module is called."""
        self.modules.append(module)
        try:
            return (yield)
        finally:
            self.modules.pop()

    def apply(self, op: mn.Op, *inputs: Any, **options: Any) -> Hearing:
        """An operator is called on tensors."""
        if self.is_placing or not self.modules:
            self.here = here = self._place()
        out = yield
        if self.is_placing and out.node is not None:
            self._places[out.node] = here
        return out

    def differentiate(self, node: mn.Node, gradient: mn.Array) -> Hearing:
        """The gradients of an operator's inputs are computed."""
        self.here, self.incoming = self._places.get(node, LOSS).backward(node.op.name), gradient
        yield

    def _place(self) -> Place:
        frame = source.user_frame(sys._getframe(2))
        where = {} if frame is None else {"code": frame.f_code, "line": frame.f_lineno}
        if not self.modules:
            return self.was or Place(phase="loss", site="loss", **where)
        module = self.modules[-1]
        return Place(phase="forward", site=self.names.modules.get(module, ""), module=type(module).__name__, **where)


class Taps:
    """Patches of one session, and who hears what comes in."""

    tapped = (
        ("call", mn.Module, "__call__"),
        ("apply", mn.Op, "__call__"),
        ("compute", mn.Op, "compute"),
        ("differentiate", mn.Node, "backward"),
        ("backward", mn.Tensor, "backward"),
        ("update", mn.Optimizer, "step"),
    )

    def attach(self, listener: Listener) -> Callable[[], None]:
        """Start listening; returns the undo."""
        patches, self._listener = Patches(), listener
        for event, owner, name in self.tapped:
            patches.wrap(owner, name, functools.partial(self._tap, event))
        for file in (mn.__file__, __file__, sys.modules[type(listener).__module__].__file__):
            source.fold(file)  # their frames are nobody's lines
        return patches.undo

    @contextlib.contextmanager
    def heard_by(self, listener: Listener) -> Generator[None, None, None]:
        """What happens in here is told to nobody else: a replay is no training."""
        before, self._listener = self._listener, listener
        try:
            yield
        finally:
            self._listener = before

    def _tap(self, event: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(*given: Any, **options: Any) -> Any:
            listener = self._listener
            hearing = listener.begin(event, *given, **options)
            try:
                out = original(*given, **options)
            except BaseException:
                if hearing is not None:
                    hearing.close()
                raise
            if hearing is not None:
                listener.end(hearing, out)
            return out

        return method


def mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Nested tuples, lists and dicts with each thing in them replaced by what a function gives."""
    if isinstance(tree, (tuple, list)):
        return type(tree)(mapped(each, function) for each in tree)
    return {key: mapped(each, function) for key, each in tree.items()} if isinstance(tree, dict) else function(tree)


def things(tree: Any, kind: type) -> list[Any]:
    """All of a kind in nested tuples, lists and dicts, in order."""
    found: list[Any] = []
    mapped(tree, found.append)
    return [each for each in found if isinstance(each, kind)]
