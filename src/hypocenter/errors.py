"""The one tree of errors a user can meet: each says what, where, why, and how to fix it."""

from __future__ import annotations


class HypocenterError(Exception):
    """An error with a slug (to search for and to silence), shown in the frame of a finding, never as a traceback.

    Args:
        what: one line, lower case, no full stop.
        where: file, option or site that it is about.
        why: what is known about the reason.
        fix: something to type or to change.
    """

    slug = "error"
    exit_code = 2

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.why, self.fix = what, where, why, fix

    def __str__(self) -> str:
        lines = [f"error[{self.slug}]: {self.what}"]
        lines += [f"  --> {self.where}"] if self.where else []
        lines += [f"   = why: {self.why}"] if self.why else []
        lines += [f"   = fix: {self.fix}"] if self.fix else []
        return "\n".join(lines)


class ConfigError(HypocenterError):
    """An option that is unknown, of the wrong type, or out of range."""

    slug = "bad-option"


class NoRecordingError(HypocenterError):
    """A path that holds no recording, or an empty one."""

    slug = "no-recording"
    exit_code = 4


class CorruptRecordingError(HypocenterError):
    """A recording whose format is unknown or whose bytes cannot be trusted."""

    slug = "corrupt-recording"
    exit_code = 4


class ExistsError(HypocenterError):
    """An output that exists already and is never overwritten silently."""

    slug = "already-exists"


class UnknownNameError(HypocenterError):
    """A code, cause, site or plug-in that nobody knows."""

    slug = "unknown-name"


class BundleError(HypocenterError):
    """A bundle that is incomplete, corrupt or asks for something that will not be run."""

    slug = "bad-bundle"
    exit_code = 4


class MissingFrameworkError(HypocenterError):
    """A command that needs a training framework, in an environment that has none."""

    slug = "missing-framework"


def first_line(error: BaseException) -> str:
    """Return what an exception says, at most 160 characters; its class where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:160]
