"""One rule a way in which a machine can be the wrong one: each yields what is against it, or what nobody said.

A reason's ``found`` is what the target has, ``expected`` what the bundle needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rowpack_loaders.compatibility.engine_needs import ANY, EngineNeeds
from rowpack_loaders.compatibility.target import Target, version_numbers
from rowpack_loaders.errors import Problem
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.runtimes import INSTALLED_BY

PRODUCTS = {"ort": "onnxruntime", "openvino": "openvino", "trt": "tensorrt", "trt_rtx": "tensorrt-rtx"}

OLDEST_ONNX_RUNTIME = (1, 23)
"""The oldest ONNX Runtime the loader is used with."""

OLDEST_OPENVINO = (2026, 4)
"""The OpenVINO the loader is tested with; older ones have not been tried."""

NEWEST_OPSET_OF_OLDEST = 23
"""The newest ONNX opset that this version runs (onnxruntime.ai, reference, compatibility)."""

PRECISIONS_OF_ONNX_RUNTIME = ("fp32", "fp16")
"""What its CPU provider has products for."""

OLDEST_CAPABILITY_OF_PRECISION = {"bf16": (8, 0), "fp8": (8, 9), "nvfp4": (10, 0)}
"""NVIDIA's support matrices of TensorRT and TensorRT for RTX; fp16 and fp32 run everywhere."""

OLDEST_ONNX_RUNTIME_WITH: dict[str, tuple[int, ...]] = {
    "com.microsoft.CausalConvWithState": (1, 25, 1),
    "com.microsoft.GroupQueryAttention": (1, 23),
    "com.microsoft.LinearAttention": (1, 25, 1),
    "com.microsoft.LinearAttentionGate": (1, 30),
    "com.microsoft.MatMulIntegerToFloat": (1, 25, 1),
    "com.microsoft.MatMulNBits": (1, 23),
    "com.microsoft.QuickGelu": (1, 23),
    "com.microsoft.SkipSimplifiedLayerNormalization": (1, 23),
}
"""Operators beyond the standard ones, and the oldest ONNX Runtime whose CPU provider computes them (right)."""

KNOWN_REQUIREMENTS: dict[str, frozenset[str]] = {
    "ort": frozenset(OLDEST_ONNX_RUNTIME_WITH),
    "openvino": frozenset(),
    "trt": frozenset(),
    "trt_rtx": frozenset(),
}
"""Entries of an engine's ``requires`` that this loader can fulfil, by backend."""


@dataclass(frozen=True)
class Unsaid:
    """A need that cannot be checked, because the target does not say: where it is from, and what is needed."""

    where: str
    needed: str
    option: str

    def as_json(self) -> dict[str, str]:
        """Return the report's entry; ``option`` is the key of ``--target`` that would tell."""
        return {"where": self.where, "needed": self.needed, "option": self.option}


@dataclass(frozen=True)
class Question:
    """One engine of a bundle of this precision and quantisation, and the machine it is to run on."""

    engine: EngineNeeds
    precision: str
    quantization: str | None
    target: Target


Answer = Problem | Unsaid
Rule = Callable[[Question], Iterator[Answer]]


def operating_system(question: Question) -> Iterator[Answer]:
    """The engine runs on the target's operating system."""
    engine, found = question.engine, question.target.os
    if ANY in engine.systems or not engine.systems:
        return
    needed = " or ".join(engine.systems)
    if found is None:
        yield Unsaid(engine.pointer("target/os"), needed, "os")
    elif found not in engine.systems:
        yield Problem(
            "target_os_mismatch",
            f"The {engine.role} engine is for another operating system",
            where=engine.pointer("target/os"),
            found=found,
            expected=needed,
            remedy=f"Run it on {needed}, or build with --backend ort",
        )


def architecture(question: Question) -> Iterator[Answer]:
    """The engine runs on the target's processor architecture."""
    engine, found = question.engine, question.target.arch
    if ANY in engine.architectures or not engine.architectures:
        return
    needed = " or ".join(engine.architectures)
    if found is None:
        yield Unsaid(engine.pointer("target/arch"), needed, "arch")
    elif found not in engine.architectures:
        yield Problem(
            "target_arch_mismatch",
            f"The {engine.role} engine is for another processor architecture",
            where=engine.pointer("target/arch"),
            found=found,
            expected=needed,
            remedy=f"Run it on {needed}, or build the bundle on a machine with {found}",
        )


def processor_features(question: Question) -> Iterator[Answer]:
    """The target's processor has the instructions that the engine's precision is for."""
    engine, found = question.engine, question.target.cpu_features
    if not engine.cpu_features:
        return
    needed = " and ".join(engine.cpu_features)
    where = engine.pointer("target/cpu_features")
    if found is None:
        yield Unsaid(where, needed, "cpu")
    elif not found.issuperset(engine.cpu_features):
        yield Problem(
            "target_cpu_feature_missing",
            f"The target's processor does not have the instructions that the {engine.role} engine is for",
            where=where,
            found="a processor without " + ", ".join(name for name in engine.cpu_features if name not in found),
            expected=needed,
            remedy="Run it on a processor that has them, or build with --precision fp32",
        )


def gpu(question: Question) -> Iterator[Answer]:
    """The target has a GPU that the engine was compiled for."""
    engine, target = question.engine, question.target
    if not engine.needs_gpu:
        return
    needed = needed_capabilities(engine)
    if target.has_gpu is False:
        yield Problem(
            "target_gpu_missing",
            f"The {engine.role} engine runs on a GPU, and the target has none",
            where=engine.pointer("target/sm"),
            found="no CUDA device",
            expected=f"compute capability {needed}",
            remedy="Run it where there is one, or build with --backend ort for the processor",
        )
    elif target.compute_capability is None:
        yield Unsaid(engine.pointer("target/sm"), f"compute capability {needed}", "sm")
    elif not _covers(engine, target.compute_capability):
        yield Problem(
            "target_compute_capability_mismatch",
            f"The {engine.role} engine was not compiled for this GPU",
            where=engine.pointer("target/sm"),
            found=f"compute capability {target.compute_capability}",
            expected=needed,
            remedy=_capability_remedy(engine, target.compute_capability),
        )


def runtime_is_there(question: Question) -> Iterator[Answer]:
    """The target has the library of the engine's backend, in a version that takes the engine."""
    engine, target = question.engine, question.target
    found = target.runtimes.get(engine.backend)
    product = PRODUCTS.get(engine.backend, engine.backend)
    needed = f"{product} {needed_version(engine)}"
    where = engine.pointer("backend_version")
    if found is None and not target.runtimes_complete:
        yield Unsaid(where, needed, engine.backend)
    elif found is None:
        yield Problem(
            "target_runtime_missing",
            f"The library that runs the {engine.role} engine is not installed",
            where=where,
            found=", ".join(f"{name} {version}" for name, version in target.runtimes.items()) or "no runtime",
            expected=needed,
            remedy=_install_remedy(engine),
        )
    elif not takes_version(engine, found):
        yield Problem(
            "target_runtime_version_mismatch",
            f"The installed {product} does not take the {engine.role} engine",
            where=where,
            found=f"{product} {found}",
            expected=needed,
            remedy=_install_remedy(engine),
        )


def driver(question: Question) -> Iterator[Answer]:
    """The target's driver is new enough."""
    engine, found = question.engine, question.target.driver
    if engine.minimum_driver is None:
        return
    where, needed = engine.pointer("target/minimum_driver"), f"{engine.minimum_driver} or newer"
    if found is None:
        yield Unsaid(where, needed, "driver")
    elif version_numbers(found) < version_numbers(engine.minimum_driver):
        yield Problem(
            "target_driver_too_old",
            f"The GPU's driver is older than the {engine.role} engine needs",
            where=where,
            found=found,
            expected=needed,
            remedy="Update the driver",
        )


def precision(question: Question) -> Iterator[Answer]:
    """The target computes in the bundle's precision."""
    engine, target = question.engine, question.target
    where = f"{MANIFEST_SECTION}#/model/{'quantization' if question.quantization else 'precision'}"
    if engine.backend == "ort" and question.precision not in PRECISIONS_OF_ONNX_RUNTIME:
        yield Problem(
            "target_precision_unsupported",
            "ONNX Runtime's CPU provider cannot run the bundle's precision",
            where=f"{MANIFEST_SECTION}#/model/precision",
            found=" and ".join(PRECISIONS_OF_ONNX_RUNTIME),
            expected=question.precision,
            remedy="Build with --precision fp32",
        )
    word = question.quantization or question.precision
    oldest = OLDEST_CAPABILITY_OF_PRECISION.get(word)
    found = target.compute_capability
    if engine.needs_gpu and oldest is not None and found is not None and version_numbers(found) < oldest:
        yield Problem(
            "target_precision_unsupported",
            "The GPU has no products in the bundle's precision",
            where=where,
            found=f"compute capability {found}",
            expected=f"{word}, from compute capability {oldest[0]}.{oldest[1]} on",
            remedy="Build with --precision fp16" if question.quantization is None else "Build without --quantization",
        )


def requirements(question: Question) -> Iterator[Answer]:
    """The loader has every capability that the engine asks for by name."""
    engine = question.engine
    known = KNOWN_REQUIREMENTS.get(engine.backend, frozenset())
    unknown = [word for word in engine.requires if word not in known]
    if unknown:
        yield Problem(
            "target_requirement_unknown",
            f"The {engine.role} engine needs what this loader does not have",
            where=engine.pointer("requires"),
            found=", ".join(sorted(known)) or "nothing beyond the ordinary operators",
            expected=", ".join(unknown)[:400],
            remedy="Use a newer version of this program, or build with the plain lowering",
        )


def takes_version(engine: EngineNeeds, version: str) -> bool:
    """Tell whether a version of the backend's library takes the engine."""
    found, built = version_numbers(version), version_numbers(engine.backend_version)
    if engine.backend == "ort":
        newer_graph = engine.opset is not None and engine.opset > NEWEST_OPSET_OF_OLDEST
        return found >= (built[:2] if newer_graph else _oldest_onnx_runtime(engine))
    if engine.backend == "openvino":
        return found[:2] >= OLDEST_OPENVINO
    if engine.version_compatible:
        return found[:1] == built[:1] and found >= built
    return found == built[: len(found)]


def needed_version(engine: EngineNeeds) -> str:
    """Return the versions that take the engine, in words."""
    if engine.backend == "ort":
        newer_graph = engine.opset is not None and engine.opset > NEWEST_OPSET_OF_OLDEST
        return f"{engine.backend_version if newer_graph else '.'.join(map(str, _oldest_onnx_runtime(engine)))} or newer"
    if engine.backend == "openvino":
        return f"{'.'.join(map(str, OLDEST_OPENVINO))} or newer"
    if engine.version_compatible:
        major = engine.backend_version.split(".")[0]
        return f"{engine.backend_version} or newer, below {int(major) + 1 if major.isdigit() else 'the next major'}"
    return f"exactly {engine.backend_version}"


def _oldest_onnx_runtime(engine: EngineNeeds) -> tuple[int, ...]:
    """Return the oldest version that has every operator of the engine."""
    return max([OLDEST_ONNX_RUNTIME, *(OLDEST_ONNX_RUNTIME_WITH.get(name, (0, 0)) for name in engine.requires)])


def needed_capabilities(engine: EngineNeeds) -> str:
    """Return the compute capabilities that the engine runs on, in words."""
    if engine.hardware_compatibility == "ampere_plus":
        return "8.0 or newer"
    return " or ".join(engine.compute_capabilities) or "unknown"


def _covers(engine: EngineNeeds, capability: str) -> bool:
    if engine.hardware_compatibility == "ampere_plus":
        return version_numbers(capability) >= (8, 0)
    return not engine.compute_capabilities or capability in engine.compute_capabilities


def _capability_remedy(engine: EngineNeeds, capability: str) -> str:
    if engine.backend == "trt_rtx":
        return (
            f"Build with --compute-capability {capability}, if TensorRT for RTX knows it; else with --backend trt there"
        )
    return (
        f"Build on a machine with compute capability {capability}, or with --hardware-compatibility ampere_plus for "
        "every GPU from 8.0 on, or with --backend trt_rtx for RTX GPUs"
    )


def _install_remedy(engine: EngineNeeds) -> str:
    if engine.backend in ("ort", "openvino"):
        return f"pip install --upgrade {INSTALLED_BY[engine.backend]}"
    product = PRODUCTS.get(engine.backend, engine.backend)
    return f"pip install {product}=={engine.backend_version}, or build the bundle again with the target's version"


RULES: tuple[Rule, ...] = (
    operating_system,
    architecture,
    processor_features,
    gpu,
    runtime_is_there,
    driver,
    precision,
    requirements,
)
