"""Make what the contenders load, from one random checkpoint, each by its own tool in a process of its own.

Everything is kept in a folder and made once; what the making took is kept beside it (``NAME.json``).
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from contenders.catalogue import QWEN, RWKV, Artifact
from measured_process import CommandError, run_measured, size_of

HERE = Path(__file__).resolve().parent
PEERS_MAKE = ("genai", "gguf")
"""The kinds that the peers' own programs make."""


@dataclass(frozen=True)
class Environments:
    """Where things run: rowpack in this Python, the peers in theirs; ``llama_cpp`` is the folder of its libraries.

    ``peers_path`` stands in for ``PYTHONPATH`` where the peers run, None leaves it.
    """

    peers_python: str | None
    llama_cpp: Path | None
    rowpack_python: str = sys.executable
    peers_path: str | None = None


@dataclass(frozen=True)
class BuildFigures:
    """What making one artifact took, and its size."""

    seconds: float
    peak_resident_bytes: int
    peak_anonymous_bytes: int
    output_bytes: int


class ArtifactStore:
    """The artifacts of one shape in one folder.

    ``shape`` is a name that ``rowpack synth`` knows, or the path of a ``config.json``; ``cache_rows`` is the longest
    sequence that bundles allow. Every method raises ``CommandError`` with the reason when a tool refuses.
    """

    def __init__(self, shape: str, folder: Path, environments: Environments, cache_rows: int) -> None:
        self.shape = shape
        self.family = family_of(shape)
        self.folder = folder / Path(shape).stem if shape.endswith(".json") else folder / shape
        self._environments = environments
        self._cache_rows = cache_rows

    def path(self, artifact: Artifact) -> Path:
        """Return where an artifact lies or will lie."""
        return self.folder / artifact.file_name

    def prepare(self, artifact: Artifact) -> Path:
        """Return an artifact's path, made if it is not there."""
        path = self.path(artifact)
        if not path.exists():
            figures = self.make(artifact, path)
            path.with_name(f"{path.name}.json").write_text(json.dumps(asdict(figures)))
        return path

    def remove(self, artifact: Artifact) -> None:
        """Remove an artifact."""
        remove_path(self.path(artifact))

    def make(self, artifact: Artifact, output: Path) -> BuildFigures:
        """Make an artifact at a path that appears when it is whole, and return what that took."""
        makers: dict[str, Callable[[Artifact, Path], list[str | Path]]] = {
            "checkpoint": self._checkpoint_command,
            "nested": self._checkpoint_command,
            "bundle": self._bundle_command,
            "genai": self._genai_command,
            "gguf": self._gguf_command,
        }
        output.parent.mkdir(parents=True, exist_ok=True)
        unfinished = output.with_name(f"unfinished-{output.name}")
        remove_path(unfinished)
        try:
            path = self._environments.peers_path if artifact.kind in PEERS_MAKE else None
            environment = {} if path is None else {"PYTHONPATH": path}
            took = run_measured(makers[artifact.kind](artifact, unfinished), environment=environment)
            if self.family == QWEN and artifact.kind in ("checkpoint", "nested"):
                announce_no_mtp(unfinished / "config.json")
            unfinished.replace(output)
        finally:
            remove_path(unfinished)
        return BuildFigures(took.seconds, took.peak_resident_bytes, took.peak_anonymous_bytes, size_of(output))

    def vocabulary_size(self) -> int:
        """Return how many tokens the checkpoint knows."""
        config = json.loads((self.prepare(Artifact("checkpoint")) / "config.json").read_text(encoding="utf-8"))
        return int(config.get("text_config", config)["vocab_size"])

    def _rowpack(self, *words: str | Path) -> list[str | Path]:
        return [self._environments.rowpack_python, "-m", "rowpack", *words, "--progress", "none"]

    def _checkpoint_command(self, artifact: Artifact, output: Path) -> list[str | Path]:
        command: list[str | Path] = self._rowpack("synth", self.shape, "-o", output, "--format", "safetensors")
        if self.family == QWEN:
            command += ["--layout", "flat" if artifact.kind == "checkpoint" else "nested"]
        return command

    def _bundle_command(self, artifact: Artifact, output: Path) -> list[str | Path]:
        checkpoint = self.prepare(Artifact("checkpoint"))
        command = self._rowpack("build", checkpoint, "-o", output, "--decoder-engine-layout", "split", "--no-verify")
        rows = ["--max-sequence-length", str(self._cache_rows)] if self.family == QWEN else []
        command += [*rows, *artifact.options]
        return command

    def _genai_command(self, artifact: Artifact, output: Path) -> list[str | Path]:
        checkpoint, scratch = self.prepare(Artifact("nested")), self.folder / "genai-cache"
        command: list[str | Path] = [self._peers_python(), "-m", "onnxruntime_genai.models.builder", "-i", checkpoint]
        command += ["-o", output, "-p", artifact.options[0], "-e", "cpu", "-c", scratch]
        return command

    def _gguf_command(self, artifact: Artifact, output: Path) -> list[str | Path]:
        checkpoint = self.prepare(Artifact("checkpoint"))
        command: list[str | Path] = [self._peers_python(), HERE / "gguf_build.py", checkpoint, output]
        command += [artifact.options[0], self.llama_cpp()]
        return command

    def _peers_python(self) -> str:
        if self._environments.peers_python is None:
            raise CommandError("no environment of the peers was named (--peers-python)")
        return self._environments.peers_python

    def llama_cpp(self) -> Path:
        """Return the folder of llama.cpp's libraries."""
        if self._environments.llama_cpp is None:
            raise CommandError("no folder of its libraries was named (--llama-cpp)")
        return self._environments.llama_cpp


def family_of(shape: str) -> str:
    """Return the family of a shape: a published name, or the ``config.json`` whose type says it."""
    name = shape
    if shape.endswith(".json"):
        name = str(json.loads(Path(shape).read_text(encoding="utf-8")).get("model_type", ""))
    return RWKV if name.startswith("rwkv") else QWEN


def announce_no_mtp(config_file: Path) -> None:
    """Say in a config that there are no multi-token-prediction layers, as there are no such tensors.

    Published configs announce one; GenAI's builder and llama.cpp's converter then miss its tensors.
    """
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config.get("text_config", config)["mtp_num_hidden_layers"] = 0
    config_file.write_text(json.dumps(config, indent=2), encoding="utf-8")


def remove_path(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
