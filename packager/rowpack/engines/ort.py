"""ONNX Runtime on the CPU: the engine is the ONNX graph itself, its weights mapped from the bundle."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from rowpack.engines.backend import BuiltEngine, RowProfile
from rowpack.engines.io_contract import DECODE, PREFILL, EngineContract
from rowpack.gate import UNKNOWN_CAPACITY, Capacity, CapacitySource, SplitVeto
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.host_memory import total_host_memory

if TYPE_CHECKING:
    import onnx

SECTIONS = {DECODE: "engine.onnx", PREFILL: "prefill.onnx"}

PRECISIONS = ("fp32", "fp16")
"""What the CPU provider really runs: it has no bfloat16 products, and widens float16 to float32 at load."""


class OrtBackend:
    """The backend ``ort``."""

    name = "ort"
    # Both sessions get the weights from one mapping of the bundle (tests/loaders measures it).
    weight_copies = 1

    def check_precision(self, precision: str) -> None:
        """Refuse bfloat16, which ONNX Runtime's CPU provider has no products for."""
        if precision not in PRECISIONS:
            raise RowpackError(
                "precision_unsupported",
                "ONNX Runtime's CPU provider cannot run this precision",
                where="--precision",
                found=precision,
                expected=", ".join(PRECISIONS),
                remedy="Build with --precision fp32 (fastest on the CPU); rowpack export-onnx writes bf16 graphs.",
            )

    def capacity(self, target_memory_bytes: int | None) -> Capacity:
        """Return the target's memory, else the memory this host really gives."""
        if target_memory_bytes is not None:
            return Capacity(target_memory_bytes, CapacitySource.TARGET_MEMORY)
        host_bytes = total_host_memory()
        return UNKNOWN_CAPACITY if host_bytes is None else Capacity(host_bytes, CapacitySource.HOST_MEMORY)

    def split_veto(self) -> SplitVeto | None:
        """Any graph with free rows runs."""
        return None

    def build_engine(
        self, role: str, model: onnx.ModelProto, contract: EngineContract, rows: RowProfile, weight_bytes: int
    ) -> BuiltEngine:
        """Serialise the graph; nothing is compiled ahead of time."""
        import onnxruntime

        from rowpack.graph.model import IR_VERSION, OPSET, serialize

        payload = serialize(model)
        return BuiltEngine(
            role=role,
            section=SECTIONS[role],
            media_type="application/onnx",
            payload=payload,
            backend_version=onnxruntime.__version__,
            lowering="plain",
            target={"os": ["any"], "arch": ["any"], "cpu_features": [], "sm": [], "minimum_driver": None},
            rows=rows,
            opset=OPSET,
            ir_version=IR_VERSION,
            onnx_sha256=hashlib.sha256(payload).hexdigest(),
            weight_bytes=weight_bytes,
            context_bytes=None,
            contract=contract,
        )
