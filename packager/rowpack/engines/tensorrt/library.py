"""Ask the installed library what it is, and refuse early what it cannot build."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rowpack.engines.options import EngineOptions, option_flag
from rowpack.engines.tensorrt.builder_process import ask_library
from rowpack.engines.tensorrt.flavour import (
    OLDEST_QUANTIZED_CAPABILITIES,
    TENSORRT,
    TENSORRT_RTX,
    Flavour,
    capability_of,
    default_capabilities,
    too_old_for,
)
from rowpack_loaders.errors import RowpackError

AskLibrary = Callable[[Sequence[str]], dict[str, Any]]


@dataclass(frozen=True)
class Library:
    """An installed library: exact version, and the compute capabilities its plans will be for.

    ``device`` is the compute capability of the GPU of this machine, or None.
    """

    version: str
    capabilities: tuple[str, ...]
    device: str | None

    @property
    def runs_here(self) -> bool:
        """Whether this machine has a GPU that the plans are for."""
        return self.device in self.capabilities


def check_options(flavour: Flavour, options: EngineOptions) -> None:
    """Refuse options that the flavour has no use for; raises RowpackError ``engine_option_unsupported``."""
    if options.compute_capabilities and not flavour.compiles_for_chosen_capabilities:
        raise RowpackError(
            "engine_option_unsupported",
            f"{flavour.product} compiles for the GPU it runs on and for no other",
            where=option_flag("compute_capabilities"),
            found=", ".join(options.compute_capabilities),
            expected="a build on the GPU that the bundle is for",
            remedy="Use --backend trt_rtx, which compiles for any RTX GPU without one, or "
            "--hardware-compatibility ampere_plus, which makes a slower plan for every GPU from 8.0 on.",
        )
    levels = tuple(flavour.hardware_levels)
    if options.hardware_compatibility is not None and options.hardware_compatibility not in levels:
        raise _unsupported(flavour, "hardware_compatibility", options.hardware_compatibility, " or ".join(levels))
    if options.version_compatible and not flavour.version_compatible:
        raise _unsupported(flavour, "version_compatible", "asked for", "")
    if options.timing_cache is not None and not flavour.timing_cache:
        raise _unsupported(flavour, "timing_cache", str(options.timing_cache), "")


def flavours_for(options: EngineOptions) -> list[Flavour]:
    """Return the flavours that take all of ``options``."""

    def takes(flavour: Flavour) -> bool:
        try:
            check_options(flavour, options)
        except RowpackError:
            return False
        return True

    return [flavour for flavour in (TENSORRT_RTX, TENSORRT) if takes(flavour)]


def open_library(
    flavour: Flavour, options: EngineOptions, ask: AskLibrary = ask_library, quantization: str | None = None
) -> Library:
    """Return the installed library of ``flavour``, with the compute capabilities that plans will be for.

    Raises RowpackError ``backend_not_installed``, ``backend_not_loadable``, ``backend_version_unsupported``,
    ``gpu_missing``, ``compute_capability_unknown`` or ``quantization_unsupported``.
    """
    library = _installed_library(flavour, options, ask, quantization)
    too_old = [] if quantization is None else too_old_for(quantization, library.capabilities)
    if too_old:
        raise RowpackError(
            "quantization_unsupported",
            f"GPUs of this compute capability have no {quantization} products",
            where="--quantization",
            found=", ".join(too_old),
            expected=f"{capability_of(f'SM{OLDEST_QUANTIZED_CAPABILITIES[str(quantization)]}')} or newer",
            remedy="Leave them out of --compute-capability, or build without --quantization.",
        )
    return library


def _installed_library(flavour: Flavour, options: EngineOptions, ask: AskLibrary, quantization: str | None) -> Library:
    if not any(importlib.util.find_spec(module) for module in flavour.modules):
        raise RowpackError(
            "backend_not_installed",
            f"{flavour.product} is not installed",
            where=f"--backend {flavour.backend}",
            found=f"no module {' and no module '.join(flavour.modules)}",
            expected=f"{flavour.product} {_dotted(flavour.minimum_version)} or newer",
            remedy=f"pip install 'rowpack[{flavour.extra}]'",
        )
    facts = ask(flavour.modules)
    if "error" in facts:
        raise RowpackError(
            "backend_not_loadable",
            f"{flavour.product} is installed and cannot be loaded",
            where=f"--backend {flavour.backend}",
            found=str(facts["error"])[:400],
            expected="a library whose parts are all there",
            remedy=f"Install all of it anew: pip install --force-reinstall 'rowpack[{flavour.extra}]'",
        )
    version = str(facts["version"])
    if _release(version) < flavour.minimum_version:
        raise RowpackError(
            "backend_version_unsupported",
            f"this version of {flavour.product} is too old",
            where=f"--backend {flavour.backend}",
            found=version,
            expected=f"{_dotted(flavour.minimum_version)} or newer",
            remedy=f"pip install --upgrade 'rowpack[{flavour.extra}]'",
        )
    if flavour.compiles_for_chosen_capabilities:
        chosen = _chosen_capabilities(flavour, options, facts["capabilities"], quantization)
        return Library(version, chosen, facts["device"])
    if facts["device"] is None:
        raise RowpackError(
            "gpu_missing",
            f"{flavour.product} compiles on the GPU that the bundle is for, and there is none here",
            where=f"--backend {flavour.backend}",
            found="no CUDA device",
            expected="an NVIDIA GPU with a driver",
            remedy="Build on the target machine, or use --backend trt_rtx, which needs no GPU.",
        )
    return Library(version, (str(facts["device"]),), facts["device"])


def _chosen_capabilities(
    flavour: Flavour, options: EngineOptions, members: list[str], quantization: str | None
) -> tuple[str, ...]:
    known = [capability_of(member) for member in members]
    unknown = [capability for capability in options.compute_capabilities if capability not in known]
    if unknown:
        raise RowpackError(
            "compute_capability_unknown",
            f"{flavour.product} cannot compile for this compute capability",
            where=option_flag("compute_capabilities"),
            found=", ".join(unknown),
            expected=" or ".join(known),
            remedy="Data-centre GPUs are not RTX GPUs: build for them with --backend trt on such a GPU.",
        )
    chosen = dict.fromkeys(options.compute_capabilities or default_capabilities(members, quantization))
    return tuple(sorted(chosen, key=lambda capability: [int(part) for part in capability.split(".")]))


def _unsupported(flavour: Flavour, option: str, found: str, expected: str) -> RowpackError:
    return RowpackError(
        "engine_option_unsupported",
        f"{flavour.product} has no use for this option",
        where=option_flag(option),
        found=found,
        expected=expected or f"a build without {option_flag(option)}",
        remedy="Leave it out, or choose another backend.",
    )


def _release(version: str) -> tuple[int, int]:
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    major, minor = [*numbers, 0, 0][:2]
    return major, minor


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
