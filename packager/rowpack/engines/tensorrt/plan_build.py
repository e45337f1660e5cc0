"""One plan on its way into the bundle: the child's messages are handled, its plan bytes handed on."""

from __future__ import annotations

import base64
import hashlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rowpack.engines.backend import BuiltEngine, EngineOrder, FileRange, Measurement, OnProgress
from rowpack.engines.io_contract import DECODE, PREFILL
from rowpack.engines.options import DEFAULT_WORKSPACE_BYTES, EngineOptions
from rowpack.engines.tensorrt.build_log import BuildLog, is_out_of_memory, quoted, remedy_for
from rowpack.engines.tensorrt.builder_process import BuilderProcess, Message
from rowpack.engines.tensorrt.flavour import Flavour, member_of
from rowpack.engines.tensorrt.library import Library
from rowpack.engines.tensorrt.network_contract import Profile, check_network, row_profile
from rowpack.engines.tensorrt.plan_record import plan_facts
from rowpack.engines.tensorrt.timing_cache import read_timing_cache, write_timing_cache
from rowpack_loaders.errors import Problem, RowpackError

if TYPE_CHECKING:
    import onnx

SECTIONS = {DECODE: "engine.plan", PREFILL: "prefill.plan"}

MEDIA_TYPE = "application/x-tensorrt-plan"

BUILDER_BASE_BYTES = 310 * 10**6
"""What a builder process holds before there is a network: the library (docs/tensorrt.md has the figures)."""

BUILDER_NODE_BYTES = 200 * 10**3
"""What its compiler holds at most for each node of the ONNX graph, whatever the weights."""


def estimated_peak_bytes(weight_bytes: int, node_count: int) -> int:
    """Return the memory that a builder process will need at most: the weights mapped from their file, and once more
    where the compiler lays them out.
    """
    return compiler_bytes(node_count) + 2 * weight_bytes


def compiler_bytes(node_count: int) -> int:
    """Return what a builder process takes for itself and for a graph of so many nodes, without the weights."""
    return BUILDER_BASE_BYTES + node_count * BUILDER_NODE_BYTES


@dataclass
class PlanBuild:
    """The build of one plan; see :class:`rowpack.engines.backend.EngineBuild`."""

    flavour: Flavour
    library: Library
    options: EngineOptions
    order: EngineOrder
    weights: FileRange
    on_progress: OnProgress
    media_type: str = MEDIA_TYPE
    _parser_errors: list[Message] = field(default_factory=list)
    _done: Message | None = None
    _result: BuiltEngine | None = None

    @property
    def section(self) -> str:
        """Name of its section."""
        return SECTIONS[self.order.role]

    @property
    def profile(self) -> Profile:
        """The shapes the plan is compiled for."""
        return row_profile(self.order.contract, self.order.rows, self.order.capacity_rows)

    def pieces(self) -> Iterator[memoryview]:
        """Yield the plan's bytes as the library writes them.

        Raises RowpackError for everything that goes wrong; the child is gone whichever way this ends.
        """
        from rowpack.graph.model import serialize

        graph = serialize(self.order.model)
        log = BuildLog({node.name: node.op_type for node in self.order.model.graph.node})
        plan_bytes = 0
        with (
            self.weights.path.open("rb") as file,
            BuilderProcess(self._request(), graph, file.fileno()) as process,
        ):
            for event in process.events():
                if isinstance(event, memoryview):
                    plan_bytes += len(event)
                    yield event
                else:
                    self._handle(event, process, log)
            self._check_outcome(process, log, plan_bytes)
        self._result = self._built_engine(graph, log, plan_bytes)

    def result(self) -> BuiltEngine:
        """Return what was built, after the last piece."""
        assert self._result is not None, "the pieces were not read to the end"
        return self._result

    @property
    def _estimated_peak_bytes(self) -> int:
        return estimated_peak_bytes(self.order.weight_bytes, len(self.order.model.graph.node))

    def _request(self) -> dict[str, Any]:
        flags = {"TF32": False}
        if self.flavour.version_compatible:
            flags["VERSION_COMPATIBLE"] = self.options.version_compatible
        chosen = self.library.capabilities if self.flavour.compiles_for_chosen_capabilities else ()
        level = self.options.hardware_compatibility
        cache = read_timing_cache(self.options.timing_cache)
        return {
            "task": "build",
            "modules": list(self.flavour.modules),
            "initializers": placed_initializers(self.order.model, self.weights.offset_bytes),
            "workspace_bytes": self.options.workspace_bytes or DEFAULT_WORKSPACE_BYTES,
            "flags": flags,
            "hardware_compatibility": None if level is None else self.flavour.hardware_levels[level],
            "capabilities": [member_of(capability) for capability in chosen],
            "profile": self.profile,
            "timing_cache": None if cache is None else base64.b64encode(cache).decode(),
        }

    def _handle(self, message: Message, process: BuilderProcess, log: BuildLog) -> None:
        kind = message["kind"]
        if kind == "log":
            log.add(message["severity"], message["text"])
        elif kind == "network":
            check_network(message, self.order.contract, self.order.role, self.profile)
            process.agree()
            self.on_progress(f"{message['layers']} layers")
        elif kind == "phase":
            steps = f" {message['step']} of {message['steps']}" if message["steps"] > 1 else ""
            self.on_progress(f"{message['phase']}{steps}")
        elif kind == "parser_error":
            self._parser_errors.append(message)
        elif kind in ("done", "failed"):
            self._done = message
        elif kind == "library" and "error" in message:
            log.add("ERROR", message["error"])

    def _check_outcome(self, process: BuilderProcess, log: BuildLog, plan_bytes: int) -> None:
        done = self._done
        if self._parser_errors:
            raise self._refused_graph(log)
        if done is None:
            raise self._ended_child(process, log)
        if done["kind"] == "failed":
            log.add("ERROR", done["text"])
        if log.errors or not done.get("built"):
            raise self._failed_build(log, process.printed)
        if done["writer_error"] is not None or done["written_bytes"] != plan_bytes:
            raise RowpackError(
                "plan_incomplete",
                f"the plan of the {self.order.role} engine did not arrive whole",
                where=self.section,
                found=done["writer_error"] or f"{plan_bytes} bytes",
                expected=f"{done['written_bytes']} bytes, as written",
                remedy="Build again.",
            )

    def _refused_graph(self, log: BuildLog) -> RowpackError:
        reasons = [
            Problem(
                "engine_graph_refused",
                f"{self.flavour.product} {self.library.version} does not take a layer of the {self.order.role} engine",
                error["node"] or log.layer_in(error["text"]) or "the graph",
                quoted(f"operator {error['operator'] or 'unknown'}: {error['text']} {' '.join(log.errors)}"),
                "operators that its ONNX parser takes",
                remedy_for(f"{error['code']} {error['text']}"),
            )
            for error in self._parser_errors
        ]
        return RowpackError.from_problems("engine_graph_refused", reasons[0].message, reasons)

    def _failed_build(self, log: BuildLog, printed: str) -> RowpackError:
        said = " ".join(log.errors) or printed.strip() or "nothing"
        everything = f"{said} {printed}"
        if is_out_of_memory(everything):
            return self._no_memory(quoted(said))
        layer = log.layer_in(everything)
        return RowpackError(
            "engine_build_failed",
            f"{self.flavour.product} {self.library.version} could not compile the {self.order.role} engine",
            where=layer or f"the {self.order.role} engine",
            found=quoted(said if layer is None else f"operator {log.operators[layer]}: {said}"),
            expected="a plan and no error in the log",
            remedy=remedy_for(everything),
        )

    def _ended_child(self, process: BuilderProcess, log: BuildLog) -> RowpackError:
        status = process.exit_status or 0
        said = " ".join([*log.errors, process.printed.strip()]).strip() or "nothing"
        if status == -signal.SIGKILL or is_out_of_memory(said):
            return self._no_memory(f"its process was ended by the system (status {status}); it said {said[-200:]}")
        ended = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return RowpackError(
            "engine_builder_crashed",
            f"the process that compiled the {self.order.role} engine ended before it was done",
            where=log.layer_in(said) or f"the {self.order.role} engine",
            found=f"{ended}; it said {quoted(said[-400:])}",
            expected="a plan",
            remedy=f"Build again; if it fails again, try another version of {self.flavour.product} or report it.",
        )

    def _no_memory(self, found: str) -> RowpackError:
        return RowpackError(
            "engine_build_out_of_memory",
            f"memory ran out while the {self.order.role} engine was compiled",
            where=f"the {self.order.role} engine",
            found=found,
            expected=f"about {self._estimated_peak_bytes} bytes free",
            remedy="Free memory or build on a larger machine; a half precision needs half of it.",
        )

    def _built_engine(self, graph: bytes, log: BuildLog, plan_bytes: int) -> BuiltEngine:
        assert self._done is not None
        memory = log.memory
        cache_sha256 = write_timing_cache(self.options.timing_cache, self._done.get("timing_cache"))
        return BuiltEngine(
            role=self.order.role,
            section=self.section,
            backend_version=self.library.version,
            lowering="plain",
            rows=self.order.rows,
            opset=next(entry.version for entry in self.order.model.opset_import if entry.domain == ""),
            ir_version=self.order.model.ir_version,
            onnx=graph,
            onnx_sha256=hashlib.sha256(graph).hexdigest(),
            weight_bytes=self.order.weight_bytes if memory is None else memory.weight_bytes,
            context_bytes=None if memory is None else memory.activation_bytes,
            scratch_bytes=None if memory is None else memory.scratch_bytes,
            contract=self.order.contract,
            profile=self.profile,
            measurement=Measurement(
                self._done["seconds"],
                self._estimated_peak_bytes,
                self._done["peak_resident_bytes"],
                plan_bytes,
            ),
            **plan_facts(self.flavour, self.library, self.options, cache_sha256),
        )


def placed_initializers(model: onnx.ModelProto, section_offset_bytes: int) -> list[tuple[str, int, int]]:
    """Return name, absolute offset and length of every weight that the graph takes from the weight section."""
    placed = []
    for tensor in model.graph.initializer:
        facts = {entry.key: entry.value for entry in tensor.external_data}
        if facts:
            placed.append((tensor.name, section_offset_bytes + int(facts["offset"]), int(facts["length"])))
    return placed
