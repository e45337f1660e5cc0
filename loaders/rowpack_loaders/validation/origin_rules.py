"""Rules about bundles converted from older containers: what is not stated is listed, and nothing else is left open."""

from __future__ import annotations

from collections.abc import Iterator

from rowpack_loaders.errors import Problem
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.strict_json import json_pointer
from rowpack_loaders.validation.subject import Finding, Rule, Subject

# Only a converted bundle may leave these open; a build knows them.
_BUILD_KNOWS = (
    ("layout_decision",),
    ("model", "parameter_count"),
    ("engines", "*", "opset"),
    ("engines", "*", "ir_version"),
    ("engines", "*", "onnx_sha256"),
    ("engines", "*", "resident_bytes", "weights"),
)


def what_is_left_open_is_listed(subject: Subject) -> Iterator[Finding]:
    """A value that every build knows is null only where the origin's list says that it is unknown."""
    origin = subject.manifest_fields.optional_child("origin")
    listed = () if origin is None else origin.texts("unknown")
    for path in _BUILD_KNOWS:
        for pointer, value in _places(subject.manifest, path, ""):
            if value is None and pointer not in listed:
                yield Problem(
                    "manifest_value_left_open",
                    "The manifest leaves a value open that every build knows",
                    where=f"{MANIFEST_SECTION}#{pointer}",
                    found="null",
                    expected="a value, or an entry in /origin/unknown of a converted bundle",
                )


def listed_places_are_there(subject: Subject) -> Iterator[Finding]:
    """The origin's lists name places that the manifest has."""
    origin = subject.manifest_fields.optional_child("origin")
    if origin is None:
        return
    for kind in ("unknown", "assumed"):
        for index, pointer in enumerate(origin.texts(kind)):
            if not _is_there(subject.manifest, pointer):
                yield Problem(
                    "origin_pointer_dangling",
                    "A list of the origin names a place that the manifest does not have",
                    where=f"{MANIFEST_SECTION}#/origin/{kind}/{index}",
                    found=repr(pointer[:128]),
                    expected="a JSON pointer into this manifest",
                )


def _places(value: object, path: tuple[str, ...], pointer: str) -> Iterator[tuple[str, object]]:
    """Yield pointer and value of each place that ``path`` leads to; ``*`` stands for every member."""
    if not path:
        yield pointer, value
    elif isinstance(value, dict):
        for key in value if path[0] == "*" else (path[0],):
            if key in value:
                yield from _places(value[key], path[1:], pointer + json_pointer(key))


def _is_there(manifest: object, pointer: str) -> bool:
    value = manifest
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            return False
    return True


RULES: tuple[Rule, ...] = (what_is_left_open_is_listed, listed_places_are_there)
