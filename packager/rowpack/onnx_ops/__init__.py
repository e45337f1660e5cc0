"""The recurrent mixers as ONNX functions whose bodies are the definitions, row by row.

They are the oracle inside every exported model: surgery replaces their calls, and "exported = replaced" is what
the verification compares. Each module holds one function's text in ONNX's own textual form.
"""

from __future__ import annotations

import onnx

from rowpack.onnx_ops import cached_attention, causal_conv, delta_rule, token_shift, wkv

CAUSAL_CONV_STATE = causal_conv.NAME
GATED_DELTA_RULE = delta_rule.NAME
CACHED_ATTENTION = cached_attention.NAME
TOKEN_SHIFT = token_shift.NAME
WKV4 = wkv.NAME

_DEFINITIONS = {
    module.NAME: module.DEFINITION for module in (causal_conv, delta_rule, cached_attention, token_shift, wkv)
}

MIXERS = tuple(_DEFINITIONS)
"""Names of all functions, in the domain ``rowpack``."""


def function(name: str) -> onnx.FunctionProto:
    """Return the ONNX function ``name``."""
    import onnx.parser

    return onnx.parser.parse_function(_DEFINITIONS[name])
