"""Answer whether a machine can run a bundle, and if not, why, one reason a rule."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rowpack_loaders.compatibility.engine_needs import EngineNeeds, read_engine_needs
from rowpack_loaders.compatibility.first_mebibyte import read_first_mebibyte
from rowpack_loaders.compatibility.memory_need import MemoryNeed, memory_need
from rowpack_loaders.compatibility.rules import RULES, Question, Unsaid
from rowpack_loaders.compatibility.target import Target
from rowpack_loaders.errors import Problem
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.manifest_fields import Fields


@dataclass(frozen=True)
class CompatibilityReport:
    """The answer: compatible unless there is a reason against it.

    ``notes`` restrict without forbidding (prompts that run row by row), ``unsaid`` is what the target left open,
    ``library_answers`` what the installed library said of each plan, where it was asked.
    """

    path: Path
    target: Target
    backends: tuple[str, ...]
    memory: MemoryNeed
    reasons: tuple[Problem, ...]
    notes: tuple[Problem, ...]
    unsaid: tuple[Unsaid, ...]
    library_answers: tuple[str, ...]

    @property
    def compatible(self) -> bool:
        """Whether nothing known speaks against it."""
        return not self.reasons

    def as_json(self) -> dict[str, object]:
        """Return the object that ``rowpack check --json`` prints."""
        return {
            "compatible": self.compatible,
            "path": str(self.path),
            "backends": list(self.backends),
            "target": self.target.as_json(),
            "reasons": [problem.as_json() for problem in self.reasons],
            "notes": [problem.as_json() for problem in self.notes],
            "unsaid": [entry.as_json() for entry in self.unsaid],
            "memory": self.memory.as_json(),
            "library_answers": list(self.library_answers),
        }


def check_bundle(path: str | os.PathLike[str], target: Target, *, ask_library: bool = False) -> CompatibilityReport:
    """Check the bundle at ``path`` against ``target`` from the file's first MiB.

    With ``ask_library`` the installed TensorRT library is asked about the first bytes of each plan as well, which
    is only meaningful for this very machine. Raises RowpackError for a file that is no bundle.
    """
    first = read_first_mebibyte(path)
    engines = read_engine_needs(first.manifest)
    model = Fields(first.manifest, "", MANIFEST_SECTION).child("model")
    reasons: list[Problem] = []
    unsaid: list[Unsaid] = []
    for engine in engines:
        question = Question(engine, model.text("precision"), model.optional_text("quantization"), target)
        for rule in RULES:
            for answer in rule(question):
                _take(answer, reasons, unsaid)
    need = memory_need(first.manifest)
    notes: list[Problem] = []
    _check_memory(need, engines, target, reasons, notes, unsaid)
    answers: list[str] = []
    if ask_library and first.is_whole:
        from rowpack_loaders.compatibility.plan_headers import ask_about_plans

        answers, refusals = ask_about_plans(first, engines)
        reasons += refusals
    return CompatibilityReport(
        path=first.path,
        target=target,
        backends=tuple(dict.fromkeys(engine.backend for engine in engines)),
        memory=need,
        reasons=tuple(reasons),
        notes=tuple(notes),
        unsaid=tuple(unsaid),
        library_answers=tuple(answers),
    )


def _take(answer: Problem | Unsaid, reasons: list[Problem], unsaid: list[Unsaid]) -> None:
    """Keep an answer, once: both engines of a bundle mostly say the same."""
    if isinstance(answer, Unsaid):
        if answer.needed not in [entry.needed for entry in unsaid]:
            unsaid.append(answer)
    elif (answer.code, answer.found, answer.expected) not in [(r.code, r.found, r.expected) for r in reasons]:
        reasons.append(answer)


def _check_memory(
    need: MemoryNeed,
    engines: tuple[EngineNeeds, ...],
    target: Target,
    reasons: list[Problem],
    notes: list[Problem],
    unsaid: list[Unsaid],
) -> None:
    on_gpu = any(engine.needs_gpu for engine in engines)
    if on_gpu and target.has_gpu is False:
        return
    available = target.device_memory_bytes if on_gpu else target.host_memory_bytes
    where = f"{MANIFEST_SECTION}#/engines/decode/resident_bytes"
    if available is None:
        unsaid.append(Unsaid(where, f"{need.decode_bytes} bytes of memory", "memory"))
    elif need.decode_bytes > available:
        reasons.append(
            Problem(
                "target_memory_insufficient",
                "The decode engine and one full sequence do not fit in the target's memory",
                where=where,
                found=f"{available} bytes",
                expected=f"{need.decode_bytes} bytes",
                remedy="Build with a shorter --max-sequence-length or a smaller --precision",
            )
        )
    elif need.pair_bytes > available:
        notes.append(
            Problem(
                "target_prefill_engine_does_not_fit",
                "The prefill engine does not fit beside the decode engine; prompts will run row by row",
                where=f"{MANIFEST_SECTION}#/engines/prefill/resident_bytes",
                found=f"{available} bytes",
                expected=f"{need.pair_bytes} bytes",
                remedy="Build with --target-memory of that device, which leaves the prefill engine out",
            )
        )
