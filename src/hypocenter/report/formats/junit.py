"""JUnit XML, as CI systems read it: one test case per finding, errors and warnings as failures."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from hypocenter.nouns import Diagnosis
from hypocenter.report.outline import Entry, Recorded, outline

suffix = ".xml"

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, production 2 (Char)


def render(recorded: Recorded, diagnosis: Diagnosis) -> str:
    """One suite. A run that cannot be judged is an `error`, never a pass; a healthy one is a single passing case."""
    report = outline(recorded, diagnosis, notes=True)
    suite = Element("testsuite", name=f"hypocenter {_text(report.name)}")
    for entry in report.entries:
        _case(suite, entry)
    if report.status != "findings":
        case = SubElement(suite, "testcase", classname="hypocenter", name="status")
        if report.status == "cannot-tell":
            SubElement(case, "error", type="cannot-tell", message=_text(report.verdict))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    SubElement(suite, "system-out").text = _text(report.summary)
    root = Element("testsuites")
    root.append(suite)
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _case(suite: Element, entry: Entry) -> None:
    case = SubElement(suite, "testcase", classname=f"hypocenter.{_text(entry.code)}", name=_text(entry.where))
    body = "\n".join([f"{entry.place} {entry.where}".strip(), *(f"{p.label}: {p.text}" for p in entry.points)])
    tag = "system-out" if entry.severity == "note" else "failure"
    attributes = {} if tag == "system-out" else {"type": entry.severity, "message": _text(entry.title)}
    SubElement(case, tag, attributes).text = _text(body)


def _text(text: str) -> str:
    return _NOT_XML.sub("?", text)
