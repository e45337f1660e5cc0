"""Fuzz the readers with atheris for a bounded time, one process a target, and print what was tried.

    python tests/fuzz/run_fuzzing.py --seconds 60
    python tests/fuzz/run_fuzzing.py --seconds 600 --targets manifest onnx --corpus some/folder

Needs ``requirements/fuzz.txt``. With ``--corpus`` the inputs that reached new code are kept there and begun with next
time. An input that fails is kept in the corpus folder, and the run ends with exit code 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SEARCH_PATH = [
    str(ROOT / folder) for folder in ("packager", "loaders", "tests/container", "tests/vectors", "tests/fuzz")
]
INPUT_TIMEOUT_S = 20
MEMORY_LIMIT_MB = 2048


@dataclass(frozen=True)
class TargetResult:
    """What became of one target: inputs tried, branches reached, and the end of the output where it failed."""

    target: str
    inputs: int
    branches: int
    seconds: float
    failure: str | None


def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--targets", nargs="*", default=[], help="names of fuzz_targets.TARGETS; all by default")
    parser.add_argument("--corpus", type=Path, help="folder that keeps inputs between runs")
    arguments = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: pip install -r requirements/fuzz.txt", file=sys.stderr)
        return 2
    sys.path[:0] = SEARCH_PATH
    from fuzz_targets import TARGETS

    names = arguments.targets or list(TARGETS)
    with tempfile.TemporaryDirectory() as scratch:
        corpus = arguments.corpus or Path(scratch)
        results = [run_target(name, corpus, max(1, arguments.seconds // len(names))) for name in names]
    for result in results:
        print(json.dumps(asdict(result)))
    total = sum(result.inputs for result in results)
    print(f"{total} inputs, {sum(result.failure is not None for result in results)} targets failed")
    return 1 if any(result.failure for result in results) else 0


def run_target(name: str, corpus: Path, seconds: int) -> TargetResult:
    """Fuzz one target in a process of its own."""
    from fuzz_targets import LONGEST_SEED_BYTES, seeds

    folder, failures = corpus / name, corpus / "failures"
    folder.mkdir(parents=True, exist_ok=True)
    failures.mkdir(exist_ok=True)
    for index, seed in enumerate(seeds(name)):
        (folder / f"seed-{index}").write_bytes(seed)
    dictionary = corpus / "words.dict"
    dictionary.write_text("".join(f'"{word}"\n' for word in words()), encoding="utf-8")
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={INPUT_TIMEOUT_S}",
        f"-rss_limit_mb={MEMORY_LIMIT_MB}",
        f"-max_len={LONGEST_SEED_BYTES}",
        f"-dict={dictionary}",
        f"-artifact_prefix={failures}/{name}-",
        "-print_final_stats=1",
        str(folder),
    ]
    started_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(HERE / "fuzz_one_target.py"), name, *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(SEARCH_PATH)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    elapsed_s = round(time.monotonic() - started_s, 1)
    inputs = re.findall(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    branches = re.findall(r"cov: (\d+)", done.stderr)
    failure = None if done.returncode == 0 else done.stderr[-3000:]
    return TargetResult(
        name, int(inputs[-1]) if inputs else 0, int(branches[-1]) if branches else 0, elapsed_s, failure
    )


def words() -> list[str]:
    """Return words of the format, escaped for libFuzzer: keys and values of the good bundle's JSON, and JSON's own."""
    from fuzz_targets import seeds

    texts = b"".join(seed for target in ("header", "manifest", "trailer", "runtime_json") for seed in seeds(target))
    quoted = set(re.findall(rb'"[A-Za-z0-9_.]{2,40}"', texts))
    others = {
        b"true",
        b"null",
        b"NaN",
        b"1e999",
        b"-1",
        b"1.0",
        b"9223372036854775808",
        b"\\ud800",
        b"\\u0000",
        b"{}",
        b"[]",
    }
    external = {b"location", b"offset", b"length", b"/etc/passwd"}
    return sorted(word.decode().replace("\\", "\\\\").replace('"', '\\"') for word in quoted | others | external)


if __name__ == "__main__":
    sys.exit(main())
