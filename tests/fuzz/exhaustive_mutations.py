"""Try every single change of a small bundle, and print how many of each kind there were and how many went unnoticed.

    python tests/fuzz/exhaustive_mutations.py --kinds bits removed values --share 1/2

Changes of bytes must all be reported. Changes of values, sealed with right digests, need not be: there no reader may
fail otherwise than with a code. ``--share 1/2`` takes every second one, for two processes side by side.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("packager", "loaders", "tests/container", "tests/vectors")]

Input = tuple[str, bytes]


def bits() -> Iterator[Input]:
    """Yield the bundle with one bit flipped: each bit of what is text or number, one of each byte elsewhere."""
    from forged_bundles import MANIFEST, good_bundle, header_of, place_of, sections_end

    good, chooser = good_bundle(), random.Random(4)
    header_end = 16 + len(json.dumps(header_of(good), separators=(",", ":")))
    manifest_start, manifest_end = place_of(good, MANIFEST)
    for position, byte in enumerate(good):
        in_text = position < header_end or manifest_start <= position < manifest_end or position >= sections_end(good)
        for bit in range(8) if in_text else (chooser.randrange(8),):
            yield f"bit {bit} of byte {position}", good[:position] + bytes([byte ^ 1 << bit]) + good[position + 1 :]


def removed() -> Iterator[Input]:
    """Yield the bundle with each byte removed."""
    from forged_bundles import good_bundle

    good = good_bundle()
    for position in range(len(good)):
        yield f"without byte {position}", good[:position] + good[position + 1 :]


def inserted() -> Iterator[Input]:
    """Yield the bundle with a byte inserted at each position: the one before it again."""
    from forged_bundles import good_bundle

    good = good_bundle()
    for position in range(len(good) + 1):
        again = good[max(0, position - 1) : max(1, position)]
        yield f"one byte more at {position}", good[:position] + again + good[position:]


def truncated() -> Iterator[Input]:
    """Yield the bundle cut at each length but the one that only loses the trailer."""
    from forged_bundles import good_bundle, sections_end

    good = good_bundle()
    for length in range(len(good)):
        if length != sections_end(good):
            yield f"cut after {length}", good[:length]


def values() -> Iterator[Input]:
    """Yield the bundle with each value of its JSON parts replaced by each odd one or removed, sealed again."""
    from forged_bundles import MANIFEST, forged, good_bundle, header_of
    from fuzz_targets import part, with_section
    from json_mutations import INTERESTING, places, removed, replaced

    from rowpack_loaders.digests import canonical_json

    good = good_bundle()
    seal: dict[str, tuple[object, Callable[[bytes], bytes]]] = {
        "manifest": (json.loads(part(MANIFEST)), lambda text: forged(good, manifest_text=lambda _: text)),
        "header": (header_of(good), lambda text: good[:16] + text.ljust(4080, b" ") + good[4096:]),
        "runtime.json": (json.loads(part("runtime.json")), lambda text: with_section("runtime.json", text)),
    }
    for name, (value, sealed) in seal.items():
        for place in places(value):
            texts = [canonical_json(replaced(value, place, new)) for new in INTERESTING]
            texts.append(canonical_json(removed(value, place)))
            for index, text in enumerate(texts):
                yield f"{name}#/{'/'.join(map(str, place))} odd value {index}", sealed(text)


KINDS: dict[str, tuple[Callable[[], Iterator[Input]], bool]] = {
    "bits": (bits, True),
    "removed": (removed, True),
    "inserted": (inserted, True),
    "truncated": (truncated, True),
    "values": (values, False),
}


def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--share", default="1/1", help="which of how many equal shares to try")
    parser.add_argument("--step", type=int, default=1, help="try each so many-th change only")
    arguments = parser.parse_args()
    which, of = map(int, arguments.share.split("/"))
    from fuzz_targets import check_file, remember_schema_checks

    remember_schema_checks()
    unnoticed: list[str] = []
    for kind in arguments.kinds:
        make, must_be_told = KINDS[kind]
        started_s, tried, before = time.monotonic(), 0, len(unnoticed)
        for index, (what, data) in enumerate(make()):
            if index // arguments.step % of != which - 1 or index % arguments.step:
                continue
            tried += 1
            try:
                if check_file(data, header_is_new=False).valid and must_be_told:
                    unnoticed.append(what)
            except Exception as error:
                unnoticed.append(f"{what}: {error!r}")
        result = {"kind": kind, "tried": tried, "unnoticed": len(unnoticed) - before}
        print(json.dumps({**result, "seconds": round(time.monotonic() - started_s, 1)}), flush=True)
    print("\n".join(unnoticed[:50]))
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
