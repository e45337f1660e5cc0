"""A pretended TensorRT library for the builder's child process, and small models to build with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiled_models import PretendedLibrary
from tiny_fixtures import tiny_checkpoints

from rowpack.engines.tensorrt.backend import TensorRtBackend
from rowpack.engines.tensorrt.flavour import TENSORRT, TENSORRT_RTX

__all__ = ["tiny_checkpoints"]

MEMORY = {"Total Weights": 1000, "Total Activation": 300, "Max Scratch": 200}


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PretendedLibrary]:
    """Return a function that installs the pretended library with a behaviour; it is found before any real one."""
    folder = tmp_path / "pretended"

    def install(backend: str = "trt", *, device: str | None = "8.9", **behaviour: Any) -> PretendedLibrary:
        flavour = {"trt": TENSORRT, "trt_rtx": TENSORRT_RTX}[backend]
        capabilities = ["SM75", "SM89", "SM120"] if backend == "trt_rtx" else []
        behaviour = {"memory": MEMORY, "capabilities": capabilities, **behaviour}
        if backend == "trt_rtx":
            behaviour.setdefault("version", "1.7.1.116")
        folder.mkdir(exist_ok=True)
        shutil.copyfile(Path(__file__).with_name("pretended_library.py"), folder / f"{flavour.modules[0]}.py")
        (folder / "behaviour.json").write_text(json.dumps(behaviour), "utf-8")
        monkeypatch.syspath_prepend(str(folder))
        facts = {"version": behaviour.get("version", "11.4.0"), "capabilities": capabilities, "device": device}
        return PretendedLibrary(TensorRtBackend(flavour, lambda modules: facts), folder)

    return install
