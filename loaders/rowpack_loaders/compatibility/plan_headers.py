"""Ask the installed TensorRT library about the first bytes of a bundle's plans; nobody decodes them here.

Without a GPU the library can only say whether the bytes begin a plan at all.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowpack_loaders.compatibility.engine_needs import EngineNeeds
from rowpack_loaders.compatibility.first_mebibyte import FirstMebibyte
from rowpack_loaders.container import Container
from rowpack_loaders.errors import Problem
from rowpack_loaders.section_content import open_content

CHILD_PROGRAM = Path(__file__).with_name("plan_header_child.py")
MODULES = {"trt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"), "trt": ("tensorrt", "tensorrt_bindings")}
HEADER_BYTES = 4096
"""Plan bytes that are handed over; the library says how many of them it looks at (64 in version 1.7)."""

MALFORMED = "MALFORMED_ENGINE"
_TIME_LIMIT_S = 60
_REMEDIES = {
    "VERSION_MISMATCH": "Install the version the plan was built with, or build the bundle again with this one",
    "UNSUPPORTED_CC": "Build with --compute-capability of this GPU",
    "OLD_CUDA_DRIVER": "Update the GPU's driver",
    "OLD_CUDA_RUNTIME": "Update the library",
    "INSUFFICIENT_GPU_MEMORY": "Free memory of the GPU, or build a smaller bundle",
    MALFORMED: "The plan was damaged: build or copy the bundle again",
}


@dataclass(frozen=True)
class LibraryVerdict:
    """What the library says of one plan: ``VALID``, ``SUBOPTIMAL`` or ``INVALID``, and why.

    Without ``diagnostics`` an ``INVALID`` is no verdict: the library could not look at a GPU, and ``messages`` say so.
    """

    version: str
    validity: str
    diagnostics: tuple[str, ...]
    messages: tuple[str, ...]

    @property
    def refusals(self) -> tuple[str, ...]:
        """Reasons against the plan; that there is no usable GPU is none of them."""
        return tuple(name for name in self.diagnostics if name != "CUDA_ERROR")

    def in_words(self) -> str:
        """Return the verdict on one line."""
        if self.validity != "INVALID" or self.refusals:
            return self.validity.lower() + "".join(f", {name}" for name in self.diagnostics)
        said = " ".join(self.messages).strip().splitlines()
        return "not malformed; no verdict without a usable GPU" + (f" ({said[0][:160]})" if said else "")


AskLibrary = Callable[[Sequence[str], bytes], LibraryVerdict | None]


def ask_library(modules: Sequence[str], header: bytes) -> LibraryVerdict | None:
    """Return what the first installed of ``modules`` says of a plan that begins with ``header``.

    Returns None where none is installed or it cannot say; a process of its own asks.
    """
    if not any(importlib.util.find_spec(module) for module in modules):
        return None
    request = json.dumps({"modules": list(modules), "sys_path": sys.path})
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-B", str(CHILD_PROGRAM), request],
            input=header,
            capture_output=True,
            timeout=_TIME_LIMIT_S,
            check=False,
        )
        facts: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    if "error" in facts:
        return None
    return LibraryVerdict(
        version=facts["version"],
        validity=facts["validity"],
        diagnostics=tuple(facts["diagnostics"]),
        messages=tuple(facts["messages"]),
    )


def ask_about_plans(
    first: FirstMebibyte, engines: Sequence[EngineNeeds], ask: AskLibrary = ask_library
) -> tuple[list[str], list[Problem]]:
    """Return the library's answers in words, and a reason against the bundle for each refusal."""
    answers, reasons = [], []
    with Container.open(first.path) as container:
        headers = [
            (engine, _header(container, first.manifest, engine.section))
            for engine in engines
            if engine.backend in MODULES and engine.section in container.sections
        ]
    for engine, header in headers:
        modules = MODULES[engine.backend]
        verdict = ask(modules, header)
        if verdict is None:
            continue
        answers.append(f"{engine.section}: {modules[0]} {verdict.version} says {verdict.in_words()}")
        for name in verdict.refusals:
            reasons.append(
                Problem(
                    "plan_refused_by_library",
                    f"The installed library does not take the {engine.role} engine",
                    where=engine.section,
                    found=f"{name} from {modules[0]} {verdict.version}",
                    expected="a plan that it takes",
                    remedy=_REMEDIES.get(name, "Build the bundle again on this machine"),
                )
            )
    return answers, reasons


def _header(container: Container, manifest: dict[str, object], section: str) -> bytes:
    """Return the first bytes of a plan, however it is stored."""
    content = open_content(container, manifest, section)
    header = bytearray(min(HEADER_BYTES, content.length_bytes))
    content.read_into(memoryview(header), 0)
    return bytes(header)
