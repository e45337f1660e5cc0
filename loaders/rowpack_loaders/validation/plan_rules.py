"""The rule about plans: where their library is installed, it agrees that they are plans."""

from __future__ import annotations

from collections.abc import Iterator

from rowpack_loaders.compatibility.plan_headers import HEADER_BYTES, MALFORMED, MODULES, ask_library
from rowpack_loaders.errors import Problem
from rowpack_loaders.section_content import open_content
from rowpack_loaders.validation.subject import Finding, Rule, Subject


def plans_begin_as_plans(subject: Subject) -> Iterator[Finding]:
    """The first bytes of a plan are those of a plan; what it runs on is for ``rowpack check`` to say."""
    for _, engine in subject.manifest_fields.members("engines"):
        modules = MODULES.get(engine.text("backend"))
        place = subject.section(engine.text("section"))
        if modules is None or place is None:
            continue
        content = open_content(subject.container, subject.manifest, engine.text("section"))
        header = bytearray(min(HEADER_BYTES, content.length_bytes))
        content.read_into(memoryview(header), 0)
        verdict = ask_library(modules, bytes(header))
        if verdict is not None and MALFORMED in verdict.diagnostics:
            yield Problem(
                "plan_malformed",
                "The library that runs a plan does not take its first bytes for one",
                where=engine.text("section"),
                found=header[:16].hex(" "),
                expected=f"a plan for {modules[0]} {verdict.version}",
                remedy="The plan was damaged: build or copy the bundle again",
            )


RULES: tuple[Rule, ...] = (plans_begin_as_plans,)
