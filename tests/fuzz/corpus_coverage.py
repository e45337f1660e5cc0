"""Say which lines of the readers a fuzzing corpus reaches: ``corpus_coverage.py FOLDER``, the ``--corpus`` of a run.

Needs ``requirements/fuzz.txt``. Prints a line a module, and the lines that no input reached.
"""

from __future__ import annotations

import sys
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    "bundle",
    "container",
    "container_forms",
    "container_header",
    "golden",
    "manifest",
    "manifest_fields",
    "model_description",
    "onnx_interface",
    "onnx_wire",
    "protobuf_wire",
    "safetensors_header",
    "section_names",
    "strict_json",
    "strict_msgpack",
    "weight_references",
    "zstd_frame",
)


def main() -> None:
    """Replay every input of the corpus and print what was reached."""
    sys.path[:0] = [str(ROOT / folder) for folder in ("packager", "loaders", "tests/container", "tests/vectors")]
    package = ROOT / "loaders" / "rowpack_loaders"
    files = [str(package / f"{name}.py") for name in MODULES] + [str(package / "validation" / "*.py")]
    measured = coverage.Coverage(data_file=None, branch=True, include=files)
    measured.start()
    from fuzz_targets import TARGETS, remember_schema_checks

    remember_schema_checks()
    count = 0
    for name, target in TARGETS.items():
        for path in sorted((Path(sys.argv[1]) / name).iterdir()):
            target(path.read_bytes())
            count += 1
    measured.stop()
    print(f"{count} inputs")
    measured.report(show_missing=True, skip_covered=False)


if __name__ == "__main__":
    main()
