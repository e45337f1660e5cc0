"""View the tensors of a bundle's weight section in place: one mapping of the file, no copy of any weight."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.mapped_section import MappedSection

# bfloat16 and float8 are unknown to numpy; their bits are viewed as integers and named again where a runtime
# takes them.
VIEW_DTYPES: dict[str, npt.DTypeLike] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}


PACKED_DTYPES = ("F4",)
"""Types narrower than a byte: there is no array of them; a runtime reads such weights from the file itself."""


class WeightView(NamedTuple):
    """One weight: its safetensors dtype, and a read-only array over the mapped bytes.

    Types that numpy does not know are unsigned integers of their width.
    """

    dtype: str
    array: npt.NDArray[Any]


def view_weights(section: MappedSection, *, where: str) -> dict[str, WeightView]:
    """Return every tensor of a safetensors ``section`` by name, without copying; packed ones are left out.

    The views keep the mapping behind ``section`` alive; ``where`` names it in errors. Raises :class:`RowpackError`
    with a ``safetensors_…`` code for a header that does not describe the section, and
    ``weight_dtype_unsupported`` for a dtype no runtime takes.
    """
    views = {}
    for name, entry in section.tensors.items():
        if entry.dtype in PACKED_DTYPES:
            continue
        if entry.dtype not in VIEW_DTYPES:
            raise RowpackError(
                "weight_dtype_unsupported",
                "A weight has a dtype that this loader cannot hand to a runtime",
                where=f"{where}: {name}",
                found=entry.dtype,
                expected=", ".join(VIEW_DTYPES),
            )
        data = section.view[entry.offset_bytes : entry.end_bytes]
        views[name] = WeightView(entry.dtype, np.frombuffer(data, dtype=VIEW_DTYPES[entry.dtype]).reshape(entry.shape))
    return views
