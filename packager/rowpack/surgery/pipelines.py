"""The two graphs made from an exported model: decode (one row) and prefill (1..N rows)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowpack.graph.model import FUNCTION_DOMAIN, export_model, import_graph
from rowpack.onnx_ops import CACHED_ATTENTION, CAUSAL_CONV_STATE, GATED_DELTA_RULE, TOKEN_SHIFT, WKV4
from rowpack.surgery.batched_projections import BatchHalvedProjections
from rowpack.surgery.block_projections import BLOCK_PRODUCT, OPERATOR, MultiplyBlocks
from rowpack.surgery.cache_capacity import FixCacheRows
from rowpack.surgery.cached_attention_chunk import cached_attention_chunk
from rowpack.surgery.cached_attention_row import cached_attention_row
from rowpack.surgery.causal_conv import causal_conv_chunk, causal_conv_row
from rowpack.surgery.columns_between_products import ColumnsBetweenProducts
from rowpack.surgery.delta_rule_chunk import DeltaRuleChunk
from rowpack.surgery.delta_rule_row import delta_rule_row
from rowpack.surgery.fused_operators import PATTERNS, fused_operator_for
from rowpack.surgery.graph_form import FREE_CACHE, GraphForm
from rowpack.surgery.mixer_replacement import Lowering, MixerReplacement, pads_rows_of
from rowpack.surgery.one_row_branch import BRANCH, BRANCH_NODES, OneRowBranch, OneRowCondition
from rowpack.surgery.only_row import TakeTheOnlyRow
from rowpack.surgery.projection_form import WeightOnTheLeft
from rowpack.surgery.reshape_chains import JoinReshapes
from rowpack.surgery.rounded_row_products import ROUNDED_ROW_PRODUCT, MultiplyRoundedRows
from rowpack.surgery.row_count import FixRowCount
from rowpack.surgery.surgery_pass import SurgeryPass, check_plain, run_passes
from rowpack.surgery.token_shift import token_shift_chunk, token_shift_row
from rowpack.surgery.unfilled_cache_rows import IgnoreUnfilledCacheRows
from rowpack.surgery.wkv_chunk import WkvChunk
from rowpack.surgery.wkv_row import wkv_row

if TYPE_CHECKING:
    import onnx

# Nodes that one replaced call may have. The delta rule and its convolution together stay below 150 and the WKV
# below 60, so that a runtime that launches a kernel a node is not slower than the recurrence.
_DELTA_RULE_NODES = 120
_CONVOLUTION_NODES = 30
_WKV_NODES = 60
_SMALL_NODES = 30


_OF_ONE_ROW: list[tuple[str, Lowering, int]] = [
    (CAUSAL_CONV_STATE, causal_conv_row, _CONVOLUTION_NODES),
    (GATED_DELTA_RULE, delta_rule_row, _DELTA_RULE_NODES),
    (CACHED_ATTENTION, cached_attention_row, _SMALL_NODES),
    (TOKEN_SHIFT, token_shift_row, _SMALL_NODES),
    (WKV4, wkv_row, _WKV_NODES),
]


_MUCH_FASTER_BY_ROW = (CACHED_ATTENTION,)
"""Mixers that pad no rows, but whose chunk turns the whole cache around for a single row."""


def decode_passes(form: GraphForm = FREE_CACHE) -> list[SurgeryPass]:
    """Return the passes that make the one-row graph."""
    before, after = _passes_of_form(form)
    products = [] if form.single_rows_on_the_right else _products_on_the_left(form)
    replaced = _replacements(_OF_ONE_ROW, form.fused.decode)
    return [*before, *replaced, FixRowCount(1), TakeTheOnlyRow(), *products, *after]


def prefill_passes(prefill_rows: int, form: GraphForm = FREE_CACHE) -> list[SurgeryPass]:
    """Return the passes that make the graph for 1..``prefill_rows`` rows."""
    before, after = _passes_of_form(form)
    plain: list[tuple[str, Lowering, int]] = [
        (CAUSAL_CONV_STATE, causal_conv_chunk, _CONVOLUTION_NODES),
        (GATED_DELTA_RULE, DeltaRuleChunk(prefill_rows, free_rows=form.free_rows), _DELTA_RULE_NODES),
        (CACHED_ATTENTION, cached_attention_chunk, _SMALL_NODES),
        (TOKEN_SHIFT, token_shift_chunk, _SMALL_NODES),
        (WKV4, WkvChunk(prefill_rows, free_rows=form.free_rows), _WKV_NODES),
    ]
    if form.one_row_branch:
        of_one_row = {mixer: lowering for mixer, lowering, _ in _OF_ONE_ROW}
        condition = OneRowCondition()
        plain = [
            (mixer, OneRowBranch(of_one_row[mixer], lowering, condition), node_budget + BRANCH_NODES)
            if pads_rows_of(lowering) or mixer in _MUCH_FASTER_BY_ROW
            else (mixer, lowering, node_budget)
            for mixer, lowering, node_budget in plain
        ]
    return [*before, *_replacements(plain, form.fused.prefill), *_products_on_the_left(form), *after]


def decode_model(exported: onnx.ModelProto, form: GraphForm = FREE_CACHE) -> onnx.ModelProto:
    """Return the one-row model made from ``exported``."""
    return _changed(exported, decode_passes(form), "decode", form.fused.decode)


def prefill_model(exported: onnx.ModelProto, prefill_rows: int, form: GraphForm = FREE_CACHE) -> onnx.ModelProto:
    """Return the model for 1..``prefill_rows`` rows made from ``exported``."""
    branch = (BRANCH,) if form.one_row_branch else ()
    return _changed(exported, prefill_passes(prefill_rows, form), "prefill", form.fused.prefill, branch)


def pads_rows(exported: onnx.ModelProto, prefill_rows: int, form: GraphForm = FREE_CACHE) -> bool:
    """Tell whether some mixer of the prefill graph made from ``exported`` computes rows that are not there."""
    called = {node.op_type for node in exported.graph.node if node.domain == FUNCTION_DOMAIN}
    return any(
        isinstance(replacement, MixerReplacement) and replacement.pads_rows and replacement.function in called
        for replacement in prefill_passes(prefill_rows, form)
    )


def _products_on_the_left(form: GraphForm) -> list[SurgeryPass]:
    """Return the passes that put weights on the left, if any."""
    if not form.weight_on_the_left:
        return []
    return [WeightOnTheLeft(single_rows=not form.single_rows_on_the_right), ColumnsBetweenProducts()]


def _passes_of_form(form: GraphForm) -> tuple[list[SurgeryPass], list[SurgeryPass]]:
    """Return what a form needs before the mixers are replaced, and after everything else."""
    before: list[SurgeryPass] = []
    after: list[SurgeryPass] = []
    if form.weight_on_the_left:
        before += [MultiplyBlocks(), MultiplyRoundedRows()]
        after.append(WeightOnTheLeft(beside=OPERATOR))
    if form.batched_halves:
        after.append(BatchHalvedProjections())
    if form.cache_capacity_rows is not None:
        before.append(IgnoreUnfilledCacheRows(form.cache_capacity_rows))
        after.append(FixCacheRows(form.cache_capacity_rows))
    return before, after


def _replacements(plain: list[tuple[str, Lowering, int]], fused: tuple[str, ...]) -> list[SurgeryPass]:
    """Return a replacement for every mixer: by its operator among ``fused``, otherwise by its plain subgraph.

    Patterns come after the mixers, whose subgraphs have some, and stay as they are where there is no operator.
    """
    passes: list[SurgeryPass] = []
    for mixer, lowering, node_budget in plain:
        operator = fused_operator_for(mixer, fused)
        passes.append(MixerReplacement(mixer, lowering, node_budget) if operator is None else operator.replacement())
    operators = [fused_operator_for(pattern.name, fused) for pattern in PATTERNS]
    return [*passes, *(operator.replacement() for operator in operators if operator is not None), JoinReshapes()]


def _changed(
    exported: onnx.ModelProto,
    passes: list[SurgeryPass],
    word: str,
    fused: tuple[str, ...],
    branch: tuple[str, ...] = (),
) -> onnx.ModelProto:
    graph = import_graph(exported)
    graph.name = str(exported.graph.name).replace("exported", word)
    graph.functions = []
    run_passes(graph, passes)
    check_plain(graph, (*fused, BLOCK_PRODUCT, ROUNDED_ROW_PRODUCT, *branch))
    return export_model(graph)
