"""Convert a bundle from before the manifest into one of today: section by section, never in place.

Engines, weights and tokenizer are carried byte for byte. What the older bundle does not say stays unknown and is
listed (``origin.unknown``); nothing is guessed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowpack.bundle.provenance import slsa_provenance
from rowpack.bundle.writer import ALIGNMENT_BYTES, BundleWriter
from rowpack.prefill_rows import check_prefill_rows
from rowpack.progress import Progress, Stage
from rowpack_loaders.bundle import Bundle, open_bundle
from rowpack_loaders.container import Container
from rowpack_loaders.container_header import SectionRange
from rowpack_loaders.digests import canonical_json
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest import MANIFEST_SECTION, EngineRecord
from rowpack_loaders.older.description import RUNTIME_JSON, OlderDescription, read_description
from rowpack_loaders.older.runtime_facts import PRECISION_KEY
from rowpack_loaders.onnx_interface import OnnxInterface, OnnxTensor, read_onnx_interface
from rowpack_loaders.section_names import case_twins, section_order, unportable_name_reason
from rowpack_loaders.strict_json import parse_json_object
from rowpack_loaders.version import __version__

MIGRATION_TYPE = "urn:rowpack:migration:1"

TODAYS_NAMES = {"engine_plan": "engine.plan", "prefill_engine_plan": "prefill.plan"}
"""Sections that are called otherwise since September 2026."""

_PIECE_BYTES = 4 * 2**20
_ONNX_LIMIT_BYTES = 2**31
_ENTRY_BYTES = 512
"""More than one section's entry takes in the manifest, and in the header."""


@dataclass(frozen=True)
class MigrationReport:
    """What a migration made, and what the older bundle left open."""

    path: Path
    form: str
    file_bytes: int
    content_digest: str
    file_digest: str
    renamed_sections: dict[str, str]
    unknown: tuple[str, ...]
    assumed: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """Return the object that ``rowpack migrate --json`` prints."""
        return {
            "path": str(self.path),
            "form": self.form,
            "file_bytes": self.file_bytes,
            "content_digest": self.content_digest,
            "file_digest": self.file_digest,
            "renamed_sections": self.renamed_sections,
            "unknown": list(self.unknown),
            "assumed": list(self.assumed),
        }


def migrate(
    old: Path,
    new: Path,
    *,
    model_id: str | None = None,
    revision: str | None = None,
    prefill_rows: int | None = None,
    progress: Progress | None = None,
) -> MigrationReport:
    """Write the bundle ``new`` from the older bundle ``old``; ``new`` appears whole or not at all.

    ``model_id``, ``revision`` and ``prefill_rows`` (the most rows its prefill engine takes) say what the older bundle
    does not. The same input gives the same bytes. Raises RowpackError: ``migration_not_needed``,
    ``migration_in_place``, ``migration_section_unusable``, ``older_engine_mismatch``, ``prefill_rows_range``, and what
    opening ``old`` and writing ``new`` raise.
    """
    progress = progress or Progress()
    if prefill_rows is not None:
        check_prefill_rows(prefill_rows)
    with open_bundle(old) as bundle:
        if not bundle.is_older:
            raise RowpackError(
                "migration_not_needed",
                "The bundle has a manifest already",
                where=str(old),
                found=f"a section {MANIFEST_SECTION}",
                expected="a bundle from before the manifest",
                remedy="Use it as it is; rowpack validate checks it",
            )
        _refuse_in_place(old, new)
        description = read_description(bundle.container)
        names = _todays_names(bundle)
        manifest = _manifest(bundle, description, names)
        _state_what_was_given(manifest, {"id": model_id, "revision": revision}, prefill_rows)
        with progress.stage("digest", str(old), bundle.container.file_size) as stage:
            manifest["origin"]["sha256"] = _file_sha256(bundle.container, stage)
        finished = _write(bundle, description, new, names, manifest, progress)
    return MigrationReport(
        path=finished.path,
        form=manifest["origin"]["form"],
        file_bytes=finished.file_size,
        content_digest=finished.content_digest,
        file_digest=finished.file_digest,
        renamed_sections={stored: name for name, stored in names.items() if stored not in ("", name)},
        unknown=tuple(manifest["origin"]["unknown"]),
        assumed=tuple(manifest["origin"]["assumed"]),
    )


def _write(
    bundle: Bundle,
    description: OlderDescription,
    new: Path,
    names: Mapping[str, str],
    manifest: dict[str, Any],
    progress: Progress,
) -> Any:
    """Carry every section over and publish, unless the older file changed on the way."""
    entries = manifest.pop("sections")
    runtime_json = _runtime_json(bundle.container, description)
    header_bytes = sum(len(json.dumps(name)) + _ENTRY_BYTES for name in names) + _ENTRY_BYTES
    with BundleWriter(
        new,
        family=description.family,
        backend=next(iter(manifest["engines"].values()))["backend"],
        manifest_reserve_bytes=len(canonical_json(manifest)) + (len(names) + 8) * 2 * _ENTRY_BYTES,
        payload_start_bytes=-(-header_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES,
    ) as writer:
        carried = sum(bundle.sections[stored].length_bytes for stored in names.values() if stored)
        with progress.stage("convert", str(new), carried) as stage:
            for name, stored in names.items():
                if name == RUNTIME_JSON:
                    writer.add_section(name, runtime_json, media_type="application/json")
                    continue
                entry, place = entries[stored], bundle.sections[stored]
                writer.add_section(
                    name,
                    _pieces(bundle.container, place, stage),
                    media_type=entry["media_type"],
                    encoding=entry["encoding"],
                    required=entry["required"],
                    length_bytes=place.length_bytes,
                )
        bundle.container.check_unchanged()
        with progress.stage("publish", str(new)):
            return writer.finish(manifest, _provenance(manifest["origin"]))


def _manifest(bundle: Bundle, description: OlderDescription, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the bundle's manifest with today's names, and with what ONNX engines say themselves."""
    manifest: dict[str, Any] = deepcopy(bundle.manifest)
    manifest["producer"] = {"name": "rowpack", "version": __version__}
    known = {"/producer/name", "/producer/version"}
    todays = {stored: name for name, stored in names.items()}
    for role, engine in manifest["engines"].items():
        stored = description.engine_sections[role]
        engine["section"] = todays[stored]
        if stored.endswith(".onnx"):
            known |= _describe_onnx_engine(bundle, role, engine)
    _forget(manifest, known)
    return manifest


def _state_what_was_given(manifest: dict[str, Any], model: Mapping[str, str | None], prefill_rows: int | None) -> None:
    """Put what the caller knows in the place of what was unknown or assumed."""
    known = set()
    for key, value in model.items():
        if value is not None:
            manifest["model"][key] = value
            known.add(f"/model/{key}")
    if prefill_rows is not None:
        manifest["limits"]["prefill_rows"] = prefill_rows
        known.add("/limits/prefill_rows")
        if "prefill" in manifest["engines"]:
            best = min(manifest["engines"]["prefill"]["rows"]["opt"], prefill_rows)
            manifest["engines"]["prefill"]["rows"] = {"min": 1, "opt": best, "max": prefill_rows}
    _forget(manifest, known)


def _forget(manifest: dict[str, Any], known: set[str]) -> None:
    """Take places off the lists of what is unknown and assumed."""
    for kind in ("unknown", "assumed"):
        manifest["origin"][kind] = [pointer for pointer in manifest["origin"][kind] if pointer not in known]


def _describe_onnx_engine(bundle: Bundle, role: str, engine: dict[str, Any]) -> set[str]:
    """Fill in what an ONNX engine says of itself; return the places that are now known."""
    stored = bundle.engines[role].section
    data = bundle.read_section(stored, limit_bytes=_ONNX_LIMIT_BYTES)
    where = f"{bundle.path}: {stored}"
    interface = read_onnx_interface(data, where=where)
    _check_tensors(bundle.engines[role], interface, where)
    for kind, tensors in (("inputs", interface.inputs), ("outputs", interface.outputs)):
        order = [tensor.name for tensor in tensors]
        engine[kind].sort(key=lambda tensor: order.index(tensor["name"]))
    engine["opset"] = interface.opsets.get("", 0) or None
    engine["ir_version"] = interface.ir_version or None
    engine["onnx_sha256"] = hashlib.sha256(data).hexdigest()
    found = {key for key in ("opset", "ir_version", "onnx_sha256") if engine[key] is not None}
    return {f"/engines/{role}/{key}" for key in (*found, "inputs", "outputs")}


def _check_tensors(engine: EngineRecord, interface: OnnxInterface, where: str) -> None:
    """Refuse a graph whose inputs or outputs are not those that loaders of its time bound."""
    for kind, wanted, found in (
        ("inputs", engine.inputs, interface.inputs),
        ("outputs", engine.outputs, interface.outputs),
    ):
        actual = {tensor.name: tensor for tensor in found if tensor.name not in interface.initializer_names}
        for tensor in wanted:
            same = tensor.name in actual and _agrees(actual.pop(tensor.name), tensor.dtype, tensor.shape)
            if not same:
                raise _engine_mismatch(where, kind, [item.name for item in found], f"{tensor.name}: {tensor.dtype}")
        if actual:
            raise _engine_mismatch(where, kind, list(actual), "no others")


def _agrees(found: OnnxTensor, dtype: str, shape: tuple[int | str, ...]) -> bool:
    """Tell whether a graph's tensor can be the one that was bound; a free size goes with any."""
    if found.dtype != dtype or found.shape is None or len(found.shape) != len(shape):
        return False
    sizes = zip(found.shape, shape, strict=True)
    return all(real == size or isinstance(real, str) or isinstance(size, str) for real, size in sizes)


def _engine_mismatch(where: str, kind: str, found: list[str], expected: str) -> RowpackError:
    return RowpackError(
        "older_engine_mismatch",
        f"The {kind} of an engine are not those that loaders of its time bound",
        where=where,
        found=", ".join(found)[:300],
        expected=expected,
        remedy="Build the bundle again from its checkpoint",
    )


def _todays_names(bundle: Bundle) -> dict[str, str]:
    """Return today's name → stored name of every section, in the order of a bundle; "" is made, not carried."""
    names: dict[str, str] = {RUNTIME_JSON: ""}
    engines = {TODAYS_NAMES.get(engine.section, engine.section) for engine in bundle.engines.values()}
    if bundle.header.form.names_task_and_backend:
        names[RUNTIME_JSON] = RUNTIME_JSON
    for stored in bundle.sections:
        name = TODAYS_NAMES.get(stored, stored)
        if stored == RUNTIME_JSON == names.get(stored):
            continue
        reason = unportable_name_reason(name)
        if name == MANIFEST_SECTION or name in names:
            reason = "another section has that name in a bundle of today"
        elif name.startswith(("engine.", "prefill.")) and name not in engines:
            reason = "it is an engine that no loader of its time took"
        if reason is not None:
            raise RowpackError(
                "migration_section_unusable",
                f"A section cannot be carried into a bundle of today: {reason}",
                where=str(bundle.path),
                found=repr(stored),
                expected="sections with names of their own, as rowpack inspect lists them",
                remedy="Build the bundle again from its checkpoint",
            )
        names[name] = stored
    twins = case_twins(names)
    if twins is not None:
        raise RowpackError(
            "migration_section_unusable",
            "Two sections would differ only in case",
            where=str(bundle.path),
            found=" and ".join(twins),
            expected="names that differ where upper and lower case are one",
            remedy="Build the bundle again from its checkpoint",
        )
    return {name: names[name] for name in sorted(names, key=section_order)}


def _runtime_json(container: Container, description: OlderDescription) -> bytes:
    """Return ``runtime.json``: as stored, or made anew from the facts where the form had none or it said too little.

    Loaders that count its keys know two precisions; a bfloat16 engine shows them float32 tensors.
    """
    precision = description.runtime.text(PRECISION_KEY)
    values = {**description.runtime.raw, PRECISION_KEY: "fp32" if precision == "bf16" else precision}
    if RUNTIME_JSON in container.sections:
        stored = container.read_section(RUNTIME_JSON)
        if parse_json_object(stored, where=RUNTIME_JSON) == values:
            return stored
    return json.dumps(values, ensure_ascii=False).encode("utf-8")


def _provenance(origin: Mapping[str, Any]) -> dict[str, object]:
    """Return what the trailer says: which file was converted, and by what."""
    older = {"file": "older bundle", "length": origin["length"], "sha256": origin["sha256"]}
    return slsa_provenance({"form": origin["form"]}, [older], {"rowpack": __version__}, build_type=MIGRATION_TYPE)


def _pieces(container: Container, place: SectionRange, stage: Stage) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(_PIECE_BYTES, place.length_bytes)))
    for offset in range(place.offset_bytes, place.end_bytes, _PIECE_BYTES):
        piece = buffer[: min(_PIECE_BYTES, place.end_bytes - offset)]
        container.read_into(piece, offset)
        yield piece
        stage.advance(len(piece))


def _file_sha256(container: Container, stage: Stage) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(container, SectionRange(0, container.file_size), stage):
        digest.update(piece)
    return digest.hexdigest()


def _refuse_in_place(old: Path, new: Path) -> None:
    """Refuse to write over the file that is being converted, by whatever name it is called."""
    if new.exists() and old.samefile(new):
        raise RowpackError(
            "migration_in_place",
            "The new bundle would replace the older one",
            where=str(new),
            found="the older bundle itself",
            expected="another path",
            remedy="Name a new file, and remove the older one when the new one works",
        )
