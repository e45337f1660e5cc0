"""A GGUF file in llama.cpp through its C interface; ``choice`` is unused, the file was written in its type.

``library`` is the folder of prebuilt libraries, with one ``libggml-cpu-*.so`` for each kind of processor, of which
llama.cpp takes the best that runs here. Parameters are structures passed by value whose fields change between
releases: the library fills in its defaults and gets them back, and only ``n_ctx``, the first field of a context's
parameters, is set. A block larger than the structure is harmless both ways: the callee reads and writes its own part.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from contenders import LoadRequest

_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
"""Takes what llama.cpp logs; kept for the life of the process, since the library keeps only a pointer."""
_opened_version: list[str] = []


class Parameters(ctypes.Structure):
    """Hold any parameter structure by value; none is larger than 1 KiB."""

    _fields_ = (("words", ctypes.c_uint32 * 256),)


class _Batch(ctypes.Structure):
    """Give ``llama_batch``, whose seven fields have not changed for years."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.c_void_p),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.c_void_p),
        ("n_seq_id", ctypes.c_void_p),
        ("seq_id", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
    )


class LlamaSequence:
    """One context on a model."""

    def __init__(self, llama: Any, context: int, vocabulary_size: int) -> None:
        self._llama = llama
        self._context = ctypes.c_void_p(context)
        self._memory = ctypes.c_void_p(llama.llama_get_memory(self._context))
        self._vocabulary_size = vocabulary_size

    def prefill(self, token_ids: list[int]) -> int:
        """Start anew with a prompt."""
        self._llama.llama_memory_clear(self._memory, True)
        return self._run(token_ids)

    def step(self, token_id: int) -> int:
        """Run one more row."""
        return self._run([token_id])

    def _run(self, token_ids: list[int]) -> int:
        import numpy as np

        tokens = (ctypes.c_int32 * len(token_ids))(*token_ids)
        status = self._llama.llama_decode(self._context, self._llama.llama_batch_get_one(tokens, len(token_ids)))
        if status != 0:
            raise SystemExit(f"llama_decode ended with status {status}")
        logits = self._llama.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary_size,)).argmax())


def versions() -> dict[str, str]:
    """Return the release of the library opened last."""
    return {"llama.cpp": _opened_version[0]} if _opened_version else {}


def import_runtime() -> None:
    """Import what reads the logits; the libraries belong to a folder and are opened while loading."""
    import numpy

    _ = numpy.ndarray


def open_library(folder: Path) -> ctypes.CDLL:
    """Open llama.cpp in a folder with its processor back ends, silent; ``FileNotFoundError`` where it is not."""
    ggml, llama = (_open_one(folder, pattern) for pattern in ("libggml.*so", "libllama.*so"))
    ggml.ggml_backend_load_all_from_path(str(folder).encode())
    llama.llama_log_set(_SILENT, None)
    llama.llama_backend_init()
    llama.llama_version.restype = ctypes.c_char_p
    _opened_version[:] = [llama.llama_version().decode()]
    return llama


def _open_one(folder: Path, pattern: str) -> ctypes.CDLL:
    """Open the one library that matches, with its symbols visible to those opened later."""
    found = sorted(folder.glob(pattern))
    if not found:
        raise FileNotFoundError(f"{folder} has no {pattern}")
    return ctypes.CDLL(str(found[0].resolve()), mode=ctypes.RTLD_GLOBAL)


def load(request: LoadRequest) -> LlamaSequence:
    """Load a GGUF file, mapped, and open a context of ``cache_rows`` rows."""
    if request.library is None:
        raise SystemExit("llama.cpp needs the folder of its libraries")
    llama = open_library(request.library)
    llama.llama_model_default_params.restype = llama.llama_context_default_params.restype = Parameters
    llama.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Parameters]
    llama.llama_init_from_model.argtypes = [ctypes.c_void_p, Parameters]
    for name in ("model_load_from_file", "init_from_model", "get_memory", "model_get_vocab"):
        getattr(llama, f"llama_{name}").restype = ctypes.c_void_p
    llama.llama_batch_get_one.restype = _Batch
    llama.llama_decode.argtypes = [ctypes.c_void_p, _Batch]
    llama.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    llama.llama_memory_clear.argtypes = [ctypes.c_void_p, ctypes.c_bool]

    model = llama.llama_model_load_from_file(str(request.source).encode(), llama.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp does not load {request.source}")
    parameters = llama.llama_context_default_params()
    parameters.words[0] = request.cache_rows
    context = llama.llama_init_from_model(model, parameters)
    if not context:
        raise SystemExit("llama.cpp made no context")
    llama.llama_set_n_threads(ctypes.c_void_p(context), request.threads, request.threads)
    vocabulary = ctypes.c_void_p(llama.llama_model_get_vocab(ctypes.c_void_p(model)))
    return LlamaSequence(llama, context, llama.llama_vocab_n_tokens(vocabulary))
