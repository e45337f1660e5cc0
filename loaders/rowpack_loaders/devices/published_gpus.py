"""Memory and compute capability of GPUs by name, for bundles that are made for a device that is not here.

Memory is the figure of the data sheet in decimal gigabytes: what a discrete board reports is never less (24 GB boards
report 23,028 to 24,564 MiB, 24.1 to 25.8 GB), so a decision made from it holds on the board. Compute capabilities are
from NVIDIA's list, developer.nvidia.com/cuda-gpus.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from rowpack_loaders.errors import RowpackError

_GIGABYTE = 10**9
_DATA_CENTER = "nvidia.com/en-us/data-center/"
_WORKSTATION = "nvidia.com/en-us/products/workstations/"
_GEFORCE = "nvidia.com/en-us/geforce/graphics-cards/compare/"
_EMBEDDED = "nvidia.com/en-us/autonomous-machines/embedded-systems/"


@dataclass(frozen=True)
class PublishedGpu:
    """One GPU; ``unified`` means that processor and GPU share one memory, which is then not all the GPU's."""

    name: str
    memory_gigabytes: int
    compute_capability: str
    source: str
    unified: bool = False

    @property
    def memory_bytes(self) -> int:
        """The data sheet's memory in bytes."""
        return self.memory_gigabytes * _GIGABYTE


PUBLISHED_GPUS = (
    PublishedGpu("T4", 16, "7.5", f"{_DATA_CENTER}tesla-t4"),
    PublishedGpu("A100-40GB", 40, "8.0", f"{_DATA_CENTER}a100"),
    PublishedGpu("A100-80GB", 80, "8.0", f"{_DATA_CENTER}a100"),
    PublishedGpu("A2", 16, "8.6", f"{_DATA_CENTER}products/a2"),
    PublishedGpu("A10", 24, "8.6", f"{_DATA_CENTER}products/a10-gpu"),
    PublishedGpu("A40", 48, "8.6", f"{_DATA_CENTER}a40"),
    PublishedGpu("RTX A6000", 48, "8.6", f"{_WORKSTATION}rtx-a6000"),
    PublishedGpu("RTX 3060", 12, "8.6", _GEFORCE),
    PublishedGpu("RTX 3090", 24, "8.6", _GEFORCE),
    PublishedGpu("Jetson Orin Nano", 8, "8.7", f"{_EMBEDDED}jetson-orin", unified=True),
    PublishedGpu("Jetson AGX Orin", 64, "8.7", f"{_EMBEDDED}jetson-orin", unified=True),
    PublishedGpu("L4", 24, "8.9", f"{_DATA_CENTER}l4"),
    PublishedGpu("L40S", 48, "8.9", f"{_DATA_CENTER}l40s"),
    PublishedGpu("RTX 6000 Ada", 48, "8.9", f"{_WORKSTATION}rtx-6000"),
    PublishedGpu("RTX 4060 Ti 16GB", 16, "8.9", _GEFORCE),
    PublishedGpu("RTX 4070", 12, "8.9", _GEFORCE),
    PublishedGpu("RTX 4080", 16, "8.9", _GEFORCE),
    PublishedGpu("RTX 4090", 24, "8.9", _GEFORCE),
    PublishedGpu("H100-80GB", 80, "9.0", f"{_DATA_CENTER}h100"),
    PublishedGpu("H100 NVL", 94, "9.0", f"{_DATA_CENTER}h100"),
    PublishedGpu("H200", 141, "9.0", f"{_DATA_CENTER}h200"),
    PublishedGpu("B200", 180, "10.0", f"{_DATA_CENTER}dgx-b200"),
    PublishedGpu("Jetson AGX Thor", 128, "11.0", f"{_EMBEDDED}jetson-thor", unified=True),
    PublishedGpu("RTX 5070", 12, "12.0", _GEFORCE),
    PublishedGpu("RTX 5080", 16, "12.0", _GEFORCE),
    PublishedGpu("RTX 5090", 32, "12.0", _GEFORCE),
    PublishedGpu("RTX PRO 6000 Blackwell", 96, "12.0", f"{_DATA_CENTER}rtx-pro-6000-blackwell-server-edition"),
    PublishedGpu("DGX Spark", 128, "12.1", "nvidia.com/en-us/products/workstations/dgx-spark", unified=True),
)

_OTHER_NAMES = {"gb10": "DGX Spark", "thor": "Jetson AGX Thor", "orin": "Jetson AGX Orin"}


def find_published_gpu(name: str) -> PublishedGpu:
    """Return the GPU called ``name``; case, spaces, hyphens and NVIDIA's brand words do not count.

    Raises ``gpu_unknown`` with the names that come close.
    """
    by_key = {_key(gpu.name): gpu for gpu in PUBLISHED_GPUS}
    by_key |= {key: by_key[_key(full)] for key, full in _OTHER_NAMES.items()}
    wanted = _key(name)
    if wanted in by_key:
        return by_key[wanted]
    close = difflib.get_close_matches(wanted, by_key, n=4, cutoff=0.5)
    known = [by_key[key].name for key in close] or [gpu.name for gpu in PUBLISHED_GPUS]
    raise RowpackError(
        "gpu_unknown",
        "This GPU is not in the table of published GPUs",
        found=repr(name)[:80],
        expected=", ".join(dict.fromkeys(known)),
        remedy="Give its memory instead, as in --target-memory 24GiB",
    )


def _key(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|generation|[\s_-]+", "", name.casefold())
