"""What the exit code of any command means; what a command means by its 0, 1 and 5 stands in its `--help`."""

from __future__ import annotations

MEANINGS = {
    0: "no finding of severity error (or of --fail-on), the same, accepted, cured, or the answer that was asked for",
    1: "findings, a difference, a departure, no cure",
    2: "a wrong option or argument, or something is missing that the command needs",
    3: "a bug in Hypocenter",
    4: "nothing to read: no recording, an empty one, or one of a newer format",
    5: "cannot tell: what was recorded or compared does not suffice for an answer",
    130: "interrupted (Ctrl-C)",
    141: "the reader of the output went away (`| head`)",
}
