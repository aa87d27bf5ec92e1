"""JUnit XML, as CI systems read it: one test case per finding, errors and warnings as failures."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement

from hypocenter.nouns import Diagnosis
from hypocenter.report.ci import junit, xml_text
from hypocenter.report.outline import Entry, Recorded, outline

suffix = ".xml"


def render(recorded: Recorded, diagnosis: Diagnosis) -> str:
    """Return one suite; a run that cannot be judged is an `error`, never a pass, a healthy one is one passing case."""
    report = outline(recorded, diagnosis, notes=True)
    suite = Element("testsuite", name=f"hypocenter {xml_text(report.name)}")
    for entry in report.entries:
        _case(suite, entry)
    if report.status != "findings":
        case = SubElement(suite, "testcase", classname="hypocenter", name="status")
        if report.status == "cannot-tell":
            SubElement(case, "error", type="cannot-tell", message=xml_text(report.verdict))
    SubElement(suite, "system-out").text = xml_text(report.summary)
    return junit(suite)


def _case(suite: Element, entry: Entry) -> None:
    case = SubElement(suite, "testcase", classname=f"hypocenter.{xml_text(entry.code)}", name=xml_text(entry.where))
    body = "\n".join([f"{entry.place} {entry.where}".strip(), *(f"{p.label}: {p.text}" for p in entry.points)])
    tag = "system-out" if entry.severity == "note" else "failure"
    attributes = {} if tag == "system-out" else {"type": entry.severity, "message": xml_text(entry.title)}
    SubElement(case, tag, attributes).text = xml_text(body)
