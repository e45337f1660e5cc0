"""Open a checkpoint folder: check all of it at once, then hand out its tensors by rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rowpack.checkpoint.file_reader import FileReader
from rowpack.checkpoint.json_files import read_json_object
from rowpack.checkpoint.tensors import StoredTensor, TensorInfo, numpy_dtype
from rowpack.checkpoint.tokenizer_files import find_tokenizer_files
from rowpack.checkpoint.unreadable_file import unreadable_file
from rowpack.checkpoint.weight_files import find_weights
from rowpack_loaders.errors import Problem, RowpackError

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class InputFile:
    """Name one file a checkpoint was read from; ``path`` may be a link into a download cache."""

    name: str
    path: Path
    byte_count: int


@dataclass
class Checkpoint:
    """Hold an opened checkpoint folder; a context manager that closes its files.

    ``config`` and the optional ``generation_config`` and ``tokenizer_config`` are the JSON objects of those
    files. ``tokenizer_files`` are the files a bundle carries verbatim, ``input_files`` everything the build
    read, sorted by name. ``warnings`` are findings that do not stop a build.
    """

    path: Path
    config: dict[str, Any]
    generation_config: dict[str, Any] | None
    tokenizer_config: dict[str, Any] | None
    tokenizer_files: dict[str, Path]
    tensors: dict[str, TensorInfo]
    input_files: list[InputFile]
    warnings: list[Problem]
    _stored: dict[str, StoredTensor] = field(repr=False)
    _reader: FileReader = field(default_factory=FileReader, repr=False)

    def read_rows(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows ``[start, stop)`` along axis 0 as a new array of shape ``(stop - start, *shape[1:])``.

        Values keep their data type (``ml_dtypes.bfloat16`` for BF16). A scalar has one row and comes back
        as an array of shape (). Raises ``KeyError`` for an unknown name, ``IndexError`` for rows outside
        the tensor and ``RowpackError`` with codes ``unsupported_tensor_dtype``, ``checkpoint_changed`` or
        ``checkpoint_unreadable``.
        """
        import numpy as np

        stored = self._stored[name]
        info = stored.info
        if not 0 <= start <= stop <= info.row_count:
            raise IndexError(f"rows [{start}, {stop}) of {name}, which has {info.row_count}")
        dtype = numpy_dtype(info.dtype, name)
        values = self._reader.read(stored.path, *stored.row_span(start, stop)).view(dtype)
        shape = (stop - start, *info.shape[1:]) if info.shape else ()
        if stored.strides is None or not values.size:
            return values.reshape(shape)
        strides_bytes = tuple(stride * dtype.itemsize for stride in stored.strides)
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(values, shape, strides_bytes))

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return the whole tensor as a new array of its shape."""
        return self.read_rows(name, 0, self.tensors[name].row_count)

    def close(self) -> None:
        """Close the weight files; calling it again does nothing."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def open_checkpoint(path: str | os.PathLike[str], *, allow_missing_tokenizer: bool = False) -> Checkpoint:
    """Open a Hugging Face checkpoint folder and check every file of it; only headers and JSON are read.

    Weights are ``model.safetensors``, its sharded form, ``pytorch_model.bin`` or its sharded form. Links
    are followed, as download caches are full of them. Raises one ``RowpackError`` with every problem found:
    its code is the problem's own when there is one, else ``bad_checkpoint``.
    """
    folder = Path(path)
    _require_folder(folder)
    problems: list[Problem] = []
    warnings: list[Problem] = []
    try:
        config = _read_config(folder, problems)
        if config is None and not os.path.lexists(folder / "config.json"):
            raise_problems(problems, folder)
        generation_config = _read_optional(folder / "generation_config.json", problems)
        tokenizer_config = _read_optional(folder / "tokenizer_config.json", problems)
        tokenizer_files = find_tokenizer_files(folder, allow_missing_tokenizer, problems, warnings)
        weights = find_weights(folder, problems, warnings)
        raise_problems(problems, folder)
        assert config is not None
        inputs = {folder / "config.json", *tokenizer_files.values(), *weights.files}
        return Checkpoint(
            path=folder,
            config=config,
            generation_config=generation_config,
            tokenizer_config=tokenizer_config,
            tokenizer_files=tokenizer_files,
            tensors={name: stored.info for name, stored in sorted(weights.tensors.items())},
            input_files=_input_files(inputs),
            warnings=warnings,
            _stored=weights.tensors,
        )
    except OSError as error:
        raise RowpackError.of(unreadable_file(Path(error.filename or folder), error)) from error


def raise_problems(problems: Sequence[Problem], folder: Path) -> None:
    """Raise one ``RowpackError`` that reports every problem, or return when there is none."""
    if not problems:
        return
    if len(problems) == 1:
        raise RowpackError.of(problems[0])
    raise RowpackError(
        "bad_checkpoint",
        f"the checkpoint has {len(problems)} problems",
        where=str(folder),
        problems=problems,
    )


def _require_folder(folder: Path) -> None:
    if not folder.exists():
        raise RowpackError(
            "checkpoint_not_found",
            "there is no such checkpoint folder",
            where=str(folder),
            found="nothing",
            expected="a folder with config.json, weights and a tokenizer",
            remedy="Give the path of a downloaded checkpoint; nothing is fetched from the network",
        )
    if not folder.is_dir():
        raise RowpackError(
            "checkpoint_not_a_folder",
            "a checkpoint is a folder with config.json, weights and a tokenizer",
            where=str(folder),
            found="a file",
            expected="a folder",
            remedy="Give the folder that the file lies in" if folder.suffix else "Give a folder with these files",
        )


def _read_config(folder: Path, problems: list[Problem]) -> dict[str, Any] | None:
    path = folder / "config.json"
    if os.path.lexists(path):
        return read_json_object(path, problems)
    names = sorted(entry.name for entry in folder.iterdir())[:6]
    problems.append(
        Problem(
            "not_a_checkpoint",
            "the folder is not a Hugging Face checkpoint",
            where=str(folder),
            found=", ".join(names) if names else "an empty folder",
            expected="config.json beside the weights",
            remedy="Give the folder that config.json lies in",
        )
    )
    return None


def _read_optional(path: Path, problems: list[Problem]) -> dict[str, Any] | None:
    return read_json_object(path, problems) if path.exists() else None


def _input_files(paths: Iterable[Path]) -> list[InputFile]:
    return [InputFile(path.name, path, path.stat().st_size) for path in sorted(paths)]
