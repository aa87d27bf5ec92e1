"""What systems of continuous integration read: annotations in a GitHub log, JUnit XML, SARIF."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, indent, tostring

from hypocenter import __version__

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, production 2 (Char)
_SARIF = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def junit(suite: Element) -> str:
    """Return the document of one suite, whose counts are taken from its test cases."""
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    root = Element("testsuites")
    root.append(suite)
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def xml_text(text: str) -> str:
    """Return the text with `?` for characters that XML cannot hold."""
    return _NOT_XML.sub("?", text)


def sarif(rules: Sequence[str], results: Sequence[dict[str, Any]], doubt: str | None = None) -> str:
    """Return a SARIF 2.1.0 log with one run, which code-scanning tools show beside the source line.

    Args:
        rules: their ids.
        results: as `sarif_result` makes them.
        doubt: why nothing can be told, if so; the invocation then was not successful, so no one takes it for healthy.
    """
    invocation: dict[str, Any] = {"executionSuccessful": doubt is None}
    if doubt is not None:
        invocation["toolExecutionNotifications"] = [{"level": "warning", "message": {"text": doubt}}]
    driver = {"name": "hypocenter", "version": __version__, "rules": [{"id": rule} for rule in rules]}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": list(results)}
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def sarif_result(
    rule: str, index: int, level: str, text: str, name: str, file: str = "", line: int | str = 1
) -> dict[str, Any]:
    """Return one result, about something of this name, at a source line where there is one."""
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": name}]}
    if file:
        uri = Path(file).as_uri() if Path(file).is_absolute() else Path(file).as_posix()
        region = {"startLine": max(int(line), 1)}
        location["physicalLocation"] = {"artifactLocation": {"uri": uri}, "region": region}
    return {
        "ruleId": rule, "ruleIndex": index, "level": level, "message": {"text": text}, "locations": [location],
    }  # fmt: skip


def annotation(level: str, text: str, title: str, file: str = "", line: int | str = 0) -> str:
    """Return a workflow command of GitHub Actions, on one line: an annotation, at a source line where there is one.

    Args:
        level: error, warning or notice.
        file: that it is shown at; empty: at none.
    """
    place = f"file={_option(file)},line={line}," if file else ""
    return f"::{level} {place}title={_option(title)}::{_message(text)}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _option(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
