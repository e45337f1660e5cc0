"""Ask the installed runtime whether a fused operator computes what its mixer is: run it, and compare.

Operators of one name differ by version, device and element type, and a schema without a kernel is common, so nothing
is taken from names: the very subgraph that would go into an engine runs on inputs that break wrong kernels, against the
recurrence in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rowpack.engines.fused_operators.probe_case import CUTS, ProbeCase, ProbePlan
from rowpack.engines.fused_operators.probe_inputs import probe_plan
from rowpack.engines.fused_operators.recurrences import Array
from rowpack.surgery.fused_operators import FusedOperator

_MASKED = -1e4


@dataclass(frozen=True)
class ProbeOutcome:
    """What a probe found; ``refusal`` says in words why the operator is not to be used, None where it may be."""

    operator: str
    refusal: str | None
    worst_error: float | None = None
    """Largest deviation over all inputs, relative to each tensor's scale; None where nothing ran."""


class Session(Protocol):
    """What runs the probe's model: ONNX Runtime's ``InferenceSession``."""

    def run(self, output_names: None, input_feed: Mapping[str, Array]) -> Sequence[Array]:
        """Run once; return the outputs in order."""
        ...


def probe_operator(
    operator: FusedOperator, shapes: Sequence[Sequence[int | str]], attributes: Mapping[str, Any]
) -> ProbeOutcome:
    """Run ``operator`` as it would replace a call with inputs of ``shapes``; never raises for what a runtime does."""
    plan = probe_plan(operator.replaced, shapes, attributes)
    try:
        session = _open_session(operator, plan, attributes)
        worst = _worst_deviation(session, plan)
    except Exception as error:  # the runtime raises classes of its own, one a kind of failure
        return ProbeOutcome(operator.name, f"the runtime cannot run it: {' '.join(str(error).split())[:200]}")
    error_found, case, rows = worst
    if error_found > case.bar:
        reason = f"relative error {error_found:.1e} on {case.name!r}, {rows} rows; at most {case.bar:.0e} is allowed"
        return ProbeOutcome(operator.name, reason, error_found)
    return ProbeOutcome(operator.name, None, error_found)


def _open_session(operator: FusedOperator, plan: ProbePlan, attributes: Mapping[str, Any]) -> Session:
    from rowpack.graph.emitter import Emitter
    from rowpack.graph.model import export_model, new_graph, serialize
    from rowpack_loaders.runtimes.onnxruntime_import import import_onnxruntime

    emitter = Emitter(new_graph("probe"))
    tensors = [
        emitter.constant(name, plan.constants[name])
        if name in plan.constants
        else emitter.input(name, "float32", shape)
        for name, shape in plan.shapes.items()
    ]
    results = operator.lowering(emitter.scope("mixer"), tensors, dict(attributes))
    for tensor, (name, shape) in zip(results, plan.outputs.items(), strict=True):
        emitter.output(tensor, name, "float32", shape)
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is the probe's finding; a library does not write to stderr
    model = serialize(export_model(emitter.graph))
    session: Session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session


def _worst_deviation(session: Session, plan: ProbePlan) -> tuple[float, ProbeCase, int]:
    """Return the deviation that is the largest part of its bar, its case, and the prompt's rows."""
    found = [(_deviation(session, plan, case, cuts), case, sum(cuts)) for case in plan.cases for cuts in CUTS]
    return max(found, key=lambda entry: entry[0] / entry[1].bar)


def _deviation(session: Session, plan: ProbePlan, case: ProbeCase, cuts: Sequence[int]) -> float:
    """Feed one prompt in pieces to the operator and to the recurrence, each carrying its own state."""
    carried, exact = dict(case.state), dict(case.state)
    worst, start = 0.0, 0
    for count in cuts:
        rows = {name: values[start : start + count] for name, values in case.rows.items()}
        masks = {"mask": _causal_mask(count, start)} if plan.caches else {}
        found = session.run(None, {**rows, **masks, **carried})
        expected = plan.recurrence(**rows, **masks, **exact, **case.fixed)
        worst = max([worst, *(_relative_error(x, y) for x, y in zip(found, expected, strict=True))])
        if plan.caches:
            for letter in ("k", "v"):
                grown = np.concatenate([carried[f"cache_{letter}"], rows[letter]])
                carried[f"cache_{letter}"] = exact[f"cache_{letter}"] = grown
        else:
            for name in case.state:
                carried[name], exact[name] = found[-1], expected[-1]
        start += count
    return worst


def _causal_mask(rows: int, cached_rows: int) -> Array:
    mask = np.zeros((rows, cached_rows + rows), np.float32)
    mask[:, cached_rows:] = np.triu(np.full((rows, rows), _MASKED, np.float32), 1)
    return mask


def _relative_error(found: Array, expected: Array) -> float:
    """Return the largest deviation over the largest expected magnitude; another shape or NaN counts as infinite."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - expected).max() / np.abs(expected).max())
