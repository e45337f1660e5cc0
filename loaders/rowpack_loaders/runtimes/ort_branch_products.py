"""Try whether the installed runtime multiplies by weights in blocks in a branch as it does outside.

ONNX Runtime 1.23 to 1.28 compute something else without a word where a MatMulNBits in a branch has more than two blocks
a row (so found with 1.25.1, 1.27.0 and 1.28.0; not with 1.29.0, 1.30.0 and 1.32.0). So the very change of a graph that
moves logits into a branch is tried on a graph of one such product, in each process, before anything relies on it.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rowpack_loaders.block_products import DOMAIN, OPERATOR, WIDTHS
from rowpack_loaders.onnx_encoding import graph, integer_attribute, node, tensor
from rowpack_loaders.onnx_graph_index import GraphIndex
from rowpack_loaders.onnx_wire import GRAPH_INPUT, GRAPH_OUTPUT, value_info
from rowpack_loaders.protobuf_wire import encoded_field
from rowpack_loaders.runtimes.host_sequence import WANTS_LOGITS
from rowpack_loaders.runtimes.ort_logits_branch import logits_branch
from rowpack_loaders.runtimes.ort_trial import run_trial

_FLOAT, _BYTES = 1, 2
_COLUMNS, _ROWS = 512, 32
_BLOCKS = (32, 128)
_LOGITS = "logits"
_EIGHT_BIT_ROWS = 4


@cache
def multiplies_in_a_branch() -> bool:
    """Tell whether the results are the same bits, for every width of weights."""
    return all(_is_same(bits, block) for bits in WIDTHS for block in _BLOCKS)


def _is_same(bits: int, block: int) -> bool:
    plain = _one_product(bits, block)
    index = GraphIndex(plain, "a trial")
    branched = index.changed(logits_branch(index, _LOGITS, _ROWS))
    rows = np.sin(np.arange(_COLUMNS, dtype=np.float32)).reshape(1, _COLUMNS)
    apart = run_trial(plain, _LOGITS, {"rows": rows})
    together = run_trial(branched, _LOGITS, {"rows": rows, WANTS_LOGITS: np.array(True)})
    return bool(np.array_equal(apart, together))


def _one_product(bits: int, block: int) -> bytes:
    """Return the content of a graph of one product, whose weights, scales and zero points differ from each other."""
    blocks, block_bytes = _COLUMNS // block, block * bits // 8
    codes = np.arange(_ROWS * blocks * block_bytes) * 37 % 251
    scales = np.cos(np.arange(_ROWS * blocks, dtype=np.float32))
    points = np.arange(_ROWS * blocks * bits // 8) * 29 % 241
    initializers = [
        tensor(_BYTES, (_ROWS, blocks, block_bytes), name="codes", data=codes.astype(np.uint8).tobytes()),
        tensor(_FLOAT, (_ROWS, blocks), name="scales", data=scales.astype("<f4").tobytes()),
        tensor(_BYTES, (_ROWS, blocks * bits // 8), name="points", data=points.astype(np.uint8).tobytes()),
    ]
    sizes = {"K": _COLUMNS, "N": _ROWS, "bits": bits, "block_size": block, "accuracy_level": _EIGHT_BIT_ROWS}
    attributes = [integer_attribute(name, size) for name, size in sizes.items()]
    product = node(OPERATOR, ["rows", "codes", "scales", "points"], [_LOGITS], *attributes, domain=DOMAIN)
    declared = [
        encoded_field(GRAPH_INPUT, value_info("rows", _FLOAT, (1, _COLUMNS))),
        encoded_field(GRAPH_OUTPUT, value_info(_LOGITS, _FLOAT, (1, _ROWS))),
    ]
    return graph("a product", [product, *declared], initializers=initializers)
