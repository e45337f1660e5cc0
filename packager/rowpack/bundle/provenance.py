"""Say where a bundle comes from, in the form of SLSA provenance v1 (slsa.dev/spec/v1.0/provenance).

What was asked for, which files went in, which program did it: the same build gives the same text, so no path, no host
and no time is recorded, unless ``SOURCE_DATE_EPOCH`` gives one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rowpack_loaders.errors import RowpackError

SLSA_PROVENANCE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:rowpack:build:1"
"""What ``externalParameters`` mean: the options of ``rowpack build``, by the names of ``BuildRequest``."""

BUILDER_ID = "urn:rowpack:builder"


def slsa_provenance(
    parameters: Mapping[str, object],
    inputs: Sequence[Mapping[str, object]],
    versions: Mapping[str, str],
    *,
    build_type: str = BUILD_TYPE,
) -> dict[str, object]:
    """Return the trailer's ``provenance``: a predicate and its type, as an in-toto statement would hold them.

    ``parameters`` is what the user chose, ``inputs`` the manifest's records of the checkpoint's files (``file``,
    ``length``, ``sha256``), ``versions`` the versions of rowpack and of the library that built the engines. Raises
    ``source_date_epoch_invalid``.
    """
    finished = source_date()
    return {
        "predicateType": SLSA_PROVENANCE,
        "predicate": {
            "buildDefinition": {
                "buildType": build_type,
                "externalParameters": dict(parameters),
                "resolvedDependencies": [
                    {
                        "name": record["file"],
                        "digest": {"sha256": record["sha256"]},
                        "annotations": {"length": record["length"]},
                    }
                    for record in inputs
                ],
            },
            "runDetails": {
                "builder": {"id": BUILDER_ID, "version": dict(versions)},
                "metadata": {} if finished is None else {"finishedOn": finished},
            },
        },
    }


def source_date() -> str | None:
    """Return ``SOURCE_DATE_EPOCH`` as an RFC 3339 time, or None when it is not set.

    Raises ``source_date_epoch_invalid`` for anything but whole seconds before the year 10000.
    """
    value = os.environ.get("SOURCE_DATE_EPOCH")
    if value is None:
        return None
    if value.isascii() and value.isdigit() and len(value) <= 11:
        return datetime.fromtimestamp(int(value), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    raise RowpackError(
        "source_date_epoch_invalid",
        "The environment variable SOURCE_DATE_EPOCH is not a number of seconds",
        where="SOURCE_DATE_EPOCH",
        found=repr(value)[:80],
        expected="decimal digits",
        remedy="Set it to a Unix time in seconds, or unset it",
    )
