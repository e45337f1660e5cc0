"""Load a plan as it was written, where the GPU it is for is present, and check its tensors against the contract."""

from __future__ import annotations

from rowpack.engines.backend import BuiltEngine, FileRange
from rowpack.engines.tensorrt.build_log import BuildLog, quoted
from rowpack.engines.tensorrt.builder_process import BuilderProcess
from rowpack.engines.tensorrt.flavour import Flavour
from rowpack.engines.tensorrt.network_contract import check_network
from rowpack_loaders.errors import RowpackError


def check_written_plan(flavour: Flavour, engine: BuiltEngine, written: FileRange) -> None:
    """Deserialise the plan in a process of its own.

    Raises RowpackError ``plan_not_loadable`` when the library does not take it, and ``engine_contract`` when its
    inputs, outputs or row counts are not those it was built for.
    """
    request = {
        "task": "tensors",
        "modules": list(flavour.modules),
        "plan_range": [written.offset_bytes, written.length_bytes],
    }
    log, found = BuildLog(), None
    with written.path.open("rb") as file, BuilderProcess(request, mapped_file=file.fileno()) as process:
        for event in process.events():
            if isinstance(event, dict) and event["kind"] == "tensors":
                found = event
            elif isinstance(event, dict) and event["kind"] == "log":
                log.add(event["severity"], event["text"])
        if found is None:
            raise RowpackError(
                "plan_not_loadable",
                f"{flavour.product} does not load the {engine.role} engine it has just built",
                where=engine.section,
                found=quoted(" ".join(log.errors) or process.printed or "no reason"),
                expected="an engine for this machine's GPU",
                remedy="Check the GPU's driver, then build again.",
            )
    check_network(found, engine.contract, engine.role, dict(engine.profile or {}))
