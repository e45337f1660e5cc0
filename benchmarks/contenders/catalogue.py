"""List the contenders of each class of precision, and what each needs.

A class holds what answers with the same width of weights: int8 and int4 are weight-only there (llama.cpp's q8_0 and
q4_0 scale blocks of 32, ONNX Runtime's and ours of 128 or 32). bfloat16 runs everywhere in torch and llama.cpp;
OpenVINO quietly computes in float32 where the processor has no instructions for it, so there it is not a bfloat16
contender.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

PRECISIONS = ("fp32", "bf16", "int8", "int4")
BF16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")
INT8_INSTRUCTIONS = ("avx_vnni", "avx512_vnni", "amx_int8")
QWEN, RWKV = "qwen3_5", "rwkv4"


@dataclass(frozen=True)
class Artifact:
    """What a contender loads: ``kind`` is ``checkpoint``, ``nested`` (checkpoint), ``bundle``, ``genai`` or ``gguf``;
    ``options`` are those of the program that makes it."""

    kind: str
    options: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """A name for it in a folder of one shape."""
        words = (self.kind, *(option.lstrip("-") for option in self.options))
        return "-".join(words)


@dataclass(frozen=True)
class Contender:
    """One row of a table. ``families``: whose models it runs; ``any_feature``: of these the processor needs one."""

    name: str
    precision: str
    module: str
    artifact: Artifact
    choice: str = ""
    families: tuple[str, ...] = (QWEN, RWKV)
    any_feature: tuple[str, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether it is this project's."""
        return self.module == "rowpack_bundle"

    @property
    def is_token_loop(self) -> bool:
        """Whether it runs prompts row by row, which takes long."""
        return self.choice == "token-loop"


def bundle(*options: str) -> Artifact:
    """Return a split bundle built with further options."""
    return Artifact("bundle", options)


def ours(name: str, precision: str, *options: str, choice: str = "chunked", **rest: tuple[str, ...]) -> Contender:
    """Return one of this project's contenders."""
    return Contender(f"rowpack {name}", precision, "rowpack_bundle", bundle(*options), choice, **rest)


def genai(precision: str) -> Contender:
    """Return ONNX Runtime GenAI in one precision."""
    return Contender(
        f"ONNX Runtime GenAI {precision}", precision, "genai_folder", Artifact("genai", (precision,)), families=(QWEN,)
    )


def llama_cpp(precision: str, type_name: str) -> Contender:
    """Return llama.cpp with a file of one type."""
    return Contender(
        f"llama.cpp {type_name}", precision, "llama_cpp_file", Artifact("gguf", (type_name,)), families=(QWEN,)
    )


def transformers(precision: str, dtype: str) -> Contender:
    """Return transformers in one data type."""
    return Contender(f"transformers {dtype}", precision, "hugging_face", Artifact("checkpoint"), dtype)


CONTENDERS = (
    ours("fp32", "fp32"),
    ours("fp32, operators chosen", "fp32", "--lowering", "auto"),
    ours("fp32, fused operators", "fp32", "--lowering", "fused"),
    ours("fp32, token loop", "fp32", choice="token-loop"),
    ours("fp32, OpenVINO", "fp32", "--backend", "openvino"),
    transformers("fp32", "float32"),
    genai("fp32"),
    llama_cpp("fp32", "f32"),
    ours("bf16, OpenVINO", "bf16", "--backend", "openvino", "--precision", "bf16", any_feature=BF16_INSTRUCTIONS),
    transformers("bf16", "bfloat16"),
    llama_cpp("bf16", "bf16"),
    ours("int8", "int8", "--quantization", "int8"),
    ours("w8a8", "int8", "--quantization", "w8a8", any_feature=INT8_INSTRUCTIONS),
    genai("int8"),
    llama_cpp("int8", "q8_0"),
    ours("int4", "int4", "--quantization", "int4"),
    ours("int4, embedding int4", "int4", "--quantization", "int4", "--embedding-quantization", "int4"),
    genai("int4"),
    llama_cpp("int4", "q4_0"),
)


def reason_against(contender: Contender, family: str, features: Collection[str]) -> str | None:
    """Return why a contender cannot run a family on a processor with these features, None when it can."""
    if family not in contender.families:
        return f"it has no {family}"
    if contender.any_feature and not set(contender.any_feature) & set(features):
        return f"the processor has none of {', '.join(contender.any_feature)}"
    return None


def select(precisions: Collection[str], names: Collection[str]) -> list[Contender]:
    """Return the contenders of some classes whose names contain one of ``names`` (all when there are none)."""
    return [
        contender
        for contender in CONTENDERS
        if contender.precision in precisions and (not names or any(name in contender.name for name in names))
    ]
