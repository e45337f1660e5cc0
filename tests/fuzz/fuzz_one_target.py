"""Fuzz one target of ``fuzz_targets`` in this process until the time is up: ``fuzz_one_target.py TARGET OPTIONS…``.

The options are libFuzzer's. Branches of ``rowpack_loaders`` are followed; ``run_fuzzing.py`` starts this.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["rowpack_loaders"]):
    from fuzz_targets import TARGETS, remember_schema_checks


def main() -> None:
    """Fuzz; libFuzzer ends the process."""
    target = TARGETS[sys.argv[1]]
    remember_schema_checks()
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
