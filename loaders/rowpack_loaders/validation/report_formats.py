"""Write reports for the places where checks of many files are read: a Markdown page, a JUnit file.

The Markdown suits the summary page of a CI run; JUnit XML is what test result viewers take: a suite a bundle, a case a
layer of rules, a failure an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from xml.etree import ElementTree

from rowpack_loaders.errors import Problem
from rowpack_loaders.validation.report import Report

# Characters that XML 1.0 cannot hold, not even escaped; file names and section names may have any of them.
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKDOWN_SYNTAX = re.compile(r"([\\`*_{}\[\]<>#|~])")


def markdown_report(reports: Sequence[Report]) -> str:
    """Return a page with one table of all bundles, and a list of problems for each that has any."""
    invalid = sum(not report.valid for report in reports)
    verdict = f"{invalid} of {len(reports)} not valid" if invalid else f"all {len(reports)} valid"
    lines = ["# Bundle validation", "", f"{verdict}.", "", "| bundle | result | errors | warnings | rules | mode |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for report in reports:
        result = "valid" if report.valid else "**invalid**"
        counts = f"{len(report.errors)} | {len(report.warnings)} | {report.checked.rules}"
        lines.append(f"| {_escaped(str(report.path))} | {result} | {counts} | {report.checked.mode} |")
    for report in reports:
        if report.found:
            lines += ["", f"## {_escaped(str(report.path))}", ""]
            lines += [_markdown_item(told.problem, is_warning=told.is_warning) for told in report.found]
    return "\n".join(lines)


def junit_report(reports: Sequence[Report]) -> str:
    """Return a JUnit XML document."""
    root = ElementTree.Element("testsuites", name="rowpack validate")
    for report in reports:
        suite = ElementTree.SubElement(root, "testsuite", name=_printable(str(report.path)))
        failures = 0
        for layer in report.checked.layers:
            case = ElementTree.SubElement(suite, "testcase", classname=_printable(str(report.path)), name=layer)
            case.set("time", f"{report.checked.elapsed_s if layer == report.checked.layers[0] else 0:.3f}")
            errors = [told.problem for told in report.found if told.layer == layer and not told.is_warning]
            warnings = [told.problem for told in report.found if told.layer == layer and told.is_warning]
            if errors:
                failures += 1
                failure = ElementTree.SubElement(case, "failure", type=errors[0].code)
                failure.set("message", _printable(errors[0].message))
                failure.text = _printable("\n".join(map(str, errors)))
            if warnings:
                ElementTree.SubElement(case, "system-out").text = _printable("\n".join(map(str, warnings)))
        suite.set("tests", str(len(report.checked.layers)))
        suite.set("failures", str(failures))
        suite.set("errors", "0")
        suite.set("time", f"{report.checked.elapsed_s:.3f}")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode")


REPORT_FORMATS: dict[str, Callable[[Sequence[Report]], str]] = {"markdown": markdown_report, "junit": junit_report}


def _markdown_item(problem: Problem, *, is_warning: bool) -> str:
    facts = (("at", problem.where), ("found", problem.found), ("expected", problem.expected))
    told = "; ".join(f"{name} {_escaped(fact)}" for name, fact in facts if fact is not None)
    remedy = f" {_escaped(problem.remedy)}." if problem.remedy else ""
    kind = "warning" if is_warning else "error"
    return f"- {kind} `{problem.code}`: {_escaped(problem.message)} ({told}).{remedy}"


def _escaped(text: str) -> str:
    return _MARKDOWN_SYNTAX.sub(r"\\\1", " ".join(_printable(text).split()))


def _printable(text: str) -> str:
    return _NOT_IN_XML.sub(lambda found: f"\\x{ord(found.group()):02x}", text)
