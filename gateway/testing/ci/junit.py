"""Writes the requests of a CI run as JUnit XML, which CI servers show as tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from xml.etree import ElementTree as Xml

from slotgate.gateway.testing.ci.verdict import EndedRequest, Verdict, printable

__all__ = ["junit_xml", "write_junit"]


def junit_xml(verdict: Verdict, failures: Collection[EndedRequest], unmatched: Collection[str]) -> bytes:
    """Return one test case for each request, and one for each unmatched request."""
    suite = Xml.Element(
        "testsuite",
        name="slotgate ci",
        tests=str(len(verdict.requests) + len(unmatched)),
        failures=str(len(failures) + len(unmatched)),
        errors="0",
        skipped="0",
        time=f"{sum(asked.seconds for asked in verdict.requests):.3f}",
    )
    failed = {id(request) for request in failures}
    for number, request in enumerate(verdict.requests, 1):
        case = _case(suite, f"{number}: {request.name}", request.seconds)
        Xml.SubElement(case, "system-out").text = f"{request.ending}, id {request.id}"
        if id(request) in failed:
            Xml.SubElement(
                case, "failure", message=request.ending
            ).text = f"request {request.id}: {request.ending}"
    for name in map(printable, unmatched):
        case = _case(suite, f"unmatched: {name}", 0.0)
        Xml.SubElement(case, "failure", message="no reply or recording matched")
    document: bytes = Xml.tostring(suite, encoding="utf-8", xml_declaration=True)
    return document


def write_junit(path: Path, document: bytes) -> None:
    """Write the file whole or not at all. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "wb") as file:
        file.write(document)
    Path(temporary).chmod(0o644)
    os.replace(temporary, path)


def _case(suite: Xml.Element, name: str, seconds: float) -> Xml.Element:
    return Xml.SubElement(suite, "testcase", classname="slotgate", name=name, time=f"{seconds:.3f}")
