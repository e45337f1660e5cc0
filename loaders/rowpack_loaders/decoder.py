"""Load a bundle and generate with it: the entry point of this package.

decoder = load("model.bundle")
print(decoder.generate("In the beginning", max_new_tokens=32).text)
"""

from __future__ import annotations

import hashlib
import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from rowpack_loaders.bundle import Bundle, open_bundle
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.garbage_collection import paused_collection
from rowpack_loaders.generation import STOP, Generation, generate_tokens
from rowpack_loaders.host_memory import available_host_memory
from rowpack_loaders.model_description import DECODE, PREFILL, ModelDescription, describe_model
from rowpack_loaders.onnx_wire import ReadModel
from rowpack_loaders.runtimes import RUNTIMES, Runtime, load_runtime
from rowpack_loaders.sampling import Sampler, SamplingParameters
from rowpack_loaders.section_content import SectionContent, check_content_digest, open_content
from rowpack_loaders.session import Overflow, PrefillMode, Session
from rowpack_loaders.stop_tokens import resolve_stop_token_ids
from rowpack_loaders.tokenization import TOKENIZER_SECTION, TextStream, TextTokenizer
from rowpack_loaders.weight_references import check_weight_references

if TYPE_CHECKING:
    from rowpack_loaders.mapped_section import MappedSection
    from rowpack_loaders.runtimes import IntArray
    from rowpack_loaders.runtimes.thread_wait import ThreadWait

Layout = Literal["auto", "single", "split"]
LAYOUTS = ("auto", "single", "split")
ONNX_SUFFIX = ".onnx"
PLAN_SUFFIX = ".plan"
ENGINE_LIMIT_BYTES = 2**31  # ONNX sections hold no weights; a protobuf message cannot be larger


class Decoder:
    """A loaded model. Sessions share its engines and weights and own everything else.

    Made by :func:`load`; a program that has the parts in memory may make one itself (``bundle`` then stays
    None and there is no tokenizer). Use it as a context manager or call :meth:`close` to close the file
    early.
    """

    def __init__(self, model: ModelDescription, runtime: Runtime, *, bundle: Bundle | None = None) -> None:
        self.model = model
        self.runtime = runtime
        self.bundle = bundle
        if bundle is not None:
            self._close_bundle = weakref.finalize(self, bundle.close)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The bundle's tokenizer, read on first use; raises ``bundle_without_tokenizer`` when there is none."""
        if self.bundle is None or not self.has_tokenizer:
            raise RowpackError(
                "bundle_without_tokenizer",
                "The bundle carries no tokenizer, so it takes and gives token ids only",
                where=self.model.model_id,
                found="no tokenizer",
                expected=f"a section {TOKENIZER_SECTION}",
                remedy="Give token ids, or build from a checkpoint with tokenizer.json",
            )
        return TextTokenizer(read_checked_section(self.bundle, TOKENIZER_SECTION))

    @property
    def has_tokenizer(self) -> bool:
        """Whether text can be used."""
        return self.bundle is not None and TOKENIZER_SECTION in self.bundle.sections

    def session(self, *, overflow: Overflow = "error") -> Session:
        """Return a new sequence at its start; ``overflow="slide"`` lets it outgrow the cache."""
        return Session(self.model, self.runtime, overflow=overflow)

    def generate(
        self,
        prompt: str | Sequence[int] | IntArray,
        max_new_tokens: int = 32,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        prefill: PrefillMode = "auto",
        overflow: Overflow = "error",
        stop_token_ids: Sequence[int] | None = None,
        on_token: Callable[[int, str], None] | None = None,
    ) -> Generation:
        """Generate up to ``max_new_tokens`` tokens after ``prompt`` (text or token ids).

        Temperature 0 is greedy. ``stop_token_ids`` replaces the bundle's own stop tokens; an empty list
        means that nothing stops early. ``on_token(token_id, text)`` is called for each new token; the texts
        join to the result's text, and one is "" while a character is unfinished. Raises
        :class:`RowpackError`; a failed generation leaves the decoder usable.
        """
        sampler = Sampler(SamplingParameters(temperature, top_k, top_p, seed))
        stop_ids = resolve_stop_token_ids(self.model.tokens, stop_token_ids)
        prompt_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        listener = None
        if on_token is not None:
            listener = _text_listener(on_token, self.tokenizer.stream() if self.has_tokenizer else None, stop_ids)
        run = generate_tokens(
            self.session(overflow=overflow),
            prompt_ids,
            max_new_tokens=max_new_tokens,
            sampler=sampler,
            stop_token_ids=stop_ids,
            prefill=prefill,
            on_token=listener,
        )
        text_ids = run.token_ids[:-1] if run.finish_reason == STOP else run.token_ids
        return Generation(
            token_ids=run.token_ids,
            text=self.tokenizer.decode(text_ids) if self.has_tokenizer else None,
            finish_reason=run.finish_reason,
            decoder_engine_layout=self.model.decoder_engine_layout,
            prefill=run.prefill,
            decode=run.decode,
            slid_rows=run.slid_rows,
        )

    def close(self) -> None:
        """Close the file; engines that are loaded go on working."""
        if self.bundle is not None:
            self._close_bundle()

    def __enter__(self) -> Decoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Decoder({self.model.model_id!r}, backend={self.runtime.backend!r})"


def load(
    path: str | os.PathLike[str],
    runtime: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    layout: Layout = "auto",
    cache_folder: str | os.PathLike[str] | None = None,
    thread_wait: ThreadWait = "auto",
) -> Decoder:
    """Load the bundle at ``path`` and return its :class:`Decoder`.

    ``runtime`` is a backend id and defaults to the bundle's own; ``device`` and ``threads`` default to the
    runtime's choice (``ort``: the processor, with every physical core this process may use). ``layout``:
    ``auto`` loads the prefill engine of a split bundle when memory holds it and warns when it does not,
    ``single`` never loads it, ``split`` insists. ``cache_folder`` is where a runtime that compiles at load (TensorRT
    for RTX) keeps what it compiled for this device; without one nothing is written. ``thread_wait`` is for ``ort``:
    idle threads ``spin`` (for 1 ms: fastest on cores that nobody else uses) or ``sleep`` (after 20 µs: better company);
    ``auto`` spins if, at load, each thread has a core that no other task runs on. Engine sections are checked by
    their digests before they are loaded; ``rowpack validate`` checks the weights as well.
    """
    if layout not in LAYOUTS:
        raise RowpackError("layout_unknown", "The layout is unknown", found=repr(layout), expected=" or ".join(LAYOUTS))
    with paused_collection():
        bundle = open_bundle(path)
        try:
            bundle.require_manifest()
            model = describe_model(bundle.manifest, where=f"{bundle.path}: manifest.json")
            kept = None if cache_folder is None else Path(cache_folder)
            loaded = _load_engines(bundle, model, layout, runtime, device, threads, kept, thread_wait)
        except BaseException:
            bundle.close()
            raise
    return Decoder(model, loaded, bundle=bundle)


def read_checked_section(bundle: Bundle, name: str, *, limit_bytes: int = 2**28) -> bytes:
    """Return the bytes of a section whose SHA-256 is the manifest's, or raise ``section_digest_mismatch``."""
    data = bundle.read_section(name, limit_bytes=limit_bytes)
    sections = bundle.manifest.get("sections")
    entry = sections.get(name) if isinstance(sections, Mapping) else None
    expected = entry.get("sha256") if isinstance(entry, Mapping) else None
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise RowpackError(
            "section_digest_mismatch",
            "A section's bytes are not the ones the manifest was written for",
            where=f"{bundle.path}: {name}",
            found=found,
            expected=str(expected)[:80],
            remedy="Copy or download the bundle again",
        )
    return data


def _load_engines(
    bundle: Bundle,
    model: ModelDescription,
    layout: Layout,
    runtime: str | None,
    device: str | None,
    threads: int | None,
    cache_folder: Path | None,
    thread_wait: ThreadWait,
) -> Runtime:
    if layout == "split" and PREFILL not in model.engines:
        raise RowpackError(
            "prefill_engine_missing",
            "The layout split was asked for, but the bundle has one engine",
            where=str(bundle.path),
            found=f"decoder_engine_layout {model.decoder_engine_layout}",
            expected="a split bundle",
            remedy="Use layout auto, or build with --decoder-engine-layout split",
        )
    weights = None if model.weights_section is None else bundle.container.mapped_section(model.weights_section)

    backend = _backend(model, runtime)

    one_session = backend in RUNTIMES and RUNTIMES[backend].one_session and model.prefill_serves_decode

    def load_roles(roles: Sequence[str]) -> Runtime:
        if one_session and PREFILL in roles:
            roles = [PREFILL]
        engines = {role: _read_engine(bundle, model, role, weights) for role in roles}
        return load_runtime(
            backend,
            model,
            engines,
            weights,
            device=device,
            thread_count=threads,
            cache_folder=cache_folder,
            thread_wait=thread_wait,
        )

    if layout == "single" or PREFILL not in model.engines:
        return load_roles([DECODE])
    if layout == "split":
        return load_roles([DECODE, PREFILL])
    on_gpu = backend in RUNTIMES and RUNTIMES[backend].on_gpu
    needed, available = second_engine_bytes(model), None if on_gpu else available_host_memory()
    if available is not None and needed > available:
        _warn_of_one_engine(f"it needs {needed} bytes and {available} are available")
        return load_roles([DECODE])
    try:
        return load_roles([DECODE, PREFILL])
    except RowpackError as error:
        if error.code != "engine_out_of_memory":
            raise
        _warn_of_one_engine("loading it ran out of memory")
        return load_roles([DECODE])


def _backend(model: ModelDescription, runtime: str | None) -> str:
    """Return the backend that runs the engines; a plan runs on no other than its own."""
    engine = model.engines[DECODE]
    if runtime is not None and runtime != engine.backend and engine.section.endswith(PLAN_SUFFIX):
        raise RowpackError(
            "runtime_unsuitable",
            "The bundle's engines are plans, which run on the library they were compiled by",
            where=engine.section,
            found=repr(runtime),
            expected=engine.backend,
            remedy="Leave the runtime out, or build the bundle for the other one",
        )
    return runtime or engine.backend


def _read_engine(
    bundle: Bundle, model: ModelDescription, role: str, weights: MappedSection | None
) -> bytes | SectionContent:
    """Return an engine after digest and weight references are checked: no runtime follows a bad one.

    A graph comes as its bytes, a plan as content that is read piece by piece.
    """
    name = model.engines[role].section
    if name.endswith(PLAN_SUFFIX):
        content = open_content(bundle.container, bundle.manifest, name)
        check_content_digest(content, bundle.manifest, name, str(bundle.path))
        return content
    data = read_checked_section(bundle, name, limit_bytes=ENGINE_LIMIT_BYTES)
    if name.endswith(ONNX_SUFFIX):
        where = f"{bundle.path}: {name}"
        data = ReadModel.of(data, where=where)
        tensors = {} if weights is None else weights.tensors
        check_weight_references(data, tensors, weights_section=model.weights_section, where=where)
    return data


def second_engine_bytes(model: ModelDescription) -> int:
    """Return what the prefill engine adds to the memory of the decode engine, as far as the manifest says.

    Weights that both engines share add nothing, nor do any where one session serves both roles.
    """
    resident = model.resident_bytes[PREFILL]
    if model.prefill_serves_decode:
        return resident.context
    return resident.context + (resident.private if model.weights_shared else resident.weights)


def _warn_of_one_engine(reason: str) -> None:
    warnings.warn(f"The prefill engine is not loaded ({reason}); prompts run row by row", UserWarning, stacklevel=4)


def _text_listener(
    on_token: Callable[[int, str], None], stream: TextStream | None, stop_ids: frozenset[int]
) -> Callable[[int, bool], None]:
    def listen(token_id: int, is_last: bool) -> None:
        text = ""
        if stream is not None:
            text = "" if token_id in stop_ids else stream.feed(token_id)
            if is_last:
                text += stream.finish()
        on_token(token_id, text)

    return listen
