"""Time prefill and decode: chunks against the token loop, and against transformers on the same CPU in the same run.

    python benchmarks/speed.py --shape qwen3_5-0.8b --prompt-tokens 142
    python benchmarks/speed.py --shape rwkv4-169m --prompt-tokens 128

The checkpoint is random, in the published shape. Contenders run one after the other in turn, each in a process of its
own, so that the machine's drift meets all of them; the table gives medians and ratios to the first row. Transformers
is left out where it is not installed (``--without-transformers`` leaves it out on purpose).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


class ContenderProcess:
    """One contender in its own process."""

    def __init__(self, name: str, source: Path, threads: int) -> None:
        self.name = name
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-W", "ignore", str(HERE / "contenders.py"), name, str(source), str(threads)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.load_s = float(self._answer()["load_s"])

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send one command and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def prepare(shape: str, precision: str, folder: Path) -> tuple[Path, Path, float]:
    """Make the random checkpoint and its split bundle unless they are there; return both and the build's seconds."""
    from rowpack import BuildRequest, build
    from rowpack.synthesis import synthesize

    checkpoint, bundle = folder / shape, folder / f"{shape}-{precision}.bundle"
    if not checkpoint.exists():
        options = {"layout": "flat"} if shape.startswith("qwen") else {"weight_format": "safetensors"}
        synthesize(shape, checkpoint, **options)
    start = time.perf_counter()
    if not bundle.exists():
        request = BuildRequest(checkpoint, bundle, precision=precision, decoder_engine_layout="split", verify=False)
        build(request)
    return checkpoint, bundle, time.perf_counter() - start


def measure(contenders: list[ContenderProcess], arguments: argparse.Namespace, vocab: int) -> list[dict[str, Any]]:
    """Run every contender in turn, ``repeats`` times after a warm-up; return medians by contender."""
    prompt = [(7919 * index + 13) % vocab for index in range(arguments.prompt_tokens)]
    times: dict[str, dict[str, list[float]]] = {c.name: {"prefill": [], "decode": []} for c in contenders}
    for repeat in range(arguments.repeats + 1):
        for contender in contenders:
            looped = contender.name.endswith("token-loop")
            if looped and repeat > arguments.loop_repeats:
                continue
            prefill = contender.ask(do="prefill", token_ids=prompt)["s"]
            decode = contender.ask(do="decode", steps=arguments.decode_steps)["s"]
            if repeat:
                times[contender.name]["prefill"].append(prefill)
                times[contender.name]["decode"].append(decode)
    return [
        {
            "contender": contender.name,
            "load_s": contender.load_s,
            "prefill_ms": 1e3 * statistics.median(times[contender.name]["prefill"]),
            "decode_ms": 1e3 * statistics.median(times[contender.name]["decode"]),
            **contender.ask(do="memory"),
        }
        for contender in contenders
    ]


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, cores, memory and versions."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    versions = {}
    for package in ("rowpack", "onnxruntime", "numpy", "torch", "transformers"):
        if importlib.util.find_spec(package) is not None:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                versions[package] = "source"
    flags = Path("/proc/cpuinfo").read_text()
    features = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if f" {name}" in flags]
    return {
        "cpu": cpu,
        "features": features,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        **versions,
    }


def table(rows: list[dict[str, Any]], prompt_tokens: int) -> str:
    """Return the medians as a Markdown table, ratios to the first row."""
    first = rows[0]
    lines = [
        f"| | prefill {prompt_tokens} ms | × first | decode ms/token | × first | load s | anonymous MB | mapped MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {row['contender']} | {row['prefill_ms']:.1f} | {row['prefill_ms'] / first['prefill_ms']:.2f} "
            f"| {row['decode_ms']:.2f} | {row['decode_ms'] / first['decode_ms']:.2f} | {row['load_s']:.2f} "
            f"| {row['RssAnon'] / 1e6:.0f} | {row['RssFile'] / 1e6:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure one shape and print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3_5-0.8b")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--prompt-tokens", type=int, default=142)
    parser.add_argument("--decode-steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--loop-repeats", type=int, default=1, help="repeats of the slow token loop")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-transformers", action="store_true")
    parser.add_argument("--folder", type=Path, help="keep checkpoint and bundle here between runs")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        checkpoint, bundle, build_s = prepare(arguments.shape, arguments.precision, arguments.folder or Path(temporary))
        vocab = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
        sources = {"rowpack chunked": bundle, "rowpack token-loop": bundle}
        if not arguments.without_transformers and importlib.util.find_spec("transformers"):
            sources |= {"transformers float32": checkpoint, "transformers bfloat16": checkpoint}
        contenders = [ContenderProcess(name, source, arguments.threads) for name, source in sources.items()]
        rows = measure(contenders, arguments, vocab)
        for contender in contenders:
            contender.close()
    facts = {**machine(), "threads": arguments.threads, "build_s": round(build_s, 1), "shape": arguments.shape}
    if arguments.json:
        print(json.dumps({"machine": facts, "rows": rows}, indent=2))
    else:
        print(", ".join(f"{key} {value}" for key, value in facts.items()))
        print(table(rows, arguments.prompt_tokens))


if __name__ == "__main__":
    main()
