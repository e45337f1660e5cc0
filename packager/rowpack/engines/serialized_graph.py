"""Engines that are their graphs: nothing is compiled ahead of time, and the weights stay in their own section."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from rowpack.engines.backend import BuiltEngine, EngineOrder
from rowpack.engines.io_contract import DECODE, PREFILL
from rowpack.engines.options import EngineOptions, option_flag
from rowpack_loaders.errors import RowpackError

SECTIONS = {DECODE: "engine.onnx", PREFILL: "prefill.onnx"}


class SerializedGraph:
    """An engine that is its graph."""

    media_type = "application/onnx"

    def __init__(self, engine: BuiltEngine) -> None:
        self._engine = engine

    @property
    def section(self) -> str:
        """Name of its section."""
        return self._engine.section

    def pieces(self) -> Iterator[bytes]:
        """Yield the graph."""
        yield self._engine.onnx

    def result(self) -> BuiltEngine:
        """Return what was built."""
        return self._engine


def serialize_engine(
    order: EngineOrder,
    *,
    backend_version: str,
    lowering: str,
    requires: tuple[str, ...],
    target: dict[str, object],
    weight_bytes: int,
    weights_shared: bool,
    private_weight_bytes: int | None = None,
) -> SerializedGraph:
    """Serialise the graph of an order; the facts that only a backend knows are those of :class:`BuiltEngine`."""
    from rowpack.graph.model import opset_of, serialize

    onnx_bytes = serialize(order.model)
    return SerializedGraph(
        BuiltEngine(
            role=order.role,
            section=SECTIONS[order.role],
            backend_version=backend_version,
            lowering=lowering,
            requires=requires,
            target=target,
            rows=order.rows,
            opset=opset_of(order.model),
            ir_version=order.model.ir_version,
            onnx=onnx_bytes,
            onnx_sha256=hashlib.sha256(onnx_bytes).hexdigest(),
            weight_bytes=weight_bytes,
            private_weight_bytes=private_weight_bytes,
            weights_shared=weights_shared,
            context_bytes=None,
            contract=order.contract,
            serves_decode=order.serves_decode,
        )
    )


def refuse_compiler_options(options: EngineOptions, message: str) -> None:
    """Raise RowpackError ``engine_option_unsupported`` with a message where options for a compiler were given."""
    if options.given:
        from rowpack.engines.tensorrt.library import flavours_for

        takers = [f"--backend {flavour.backend}" for flavour in flavours_for(options)]
        elsewhere = f", or choose a backend that compiles ahead of time: {' or '.join(takers)}" if takers else ""
        raise RowpackError(
            "engine_option_unsupported",
            message,
            where=", ".join(option_flag(name) for name in options.given),
            found="options for a compiler",
            expected="none",
            remedy=f"Leave them out{elsewhere}.",
        )
