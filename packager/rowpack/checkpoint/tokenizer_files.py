"""Find the tokenizer and generation files that a bundle carries verbatim."""

from __future__ import annotations

from pathlib import Path

from rowpack.checkpoint.json_files import read_json_object
from rowpack.checkpoint.lfs_pointer import lfs_pointer_problem
from rowpack_loaders.errors import Problem

REQUIRED_TOKENIZER_FILE = "tokenizer.json"
"""The one tokenizer format a loader can run without code of the checkpoint."""

CARRIED_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
"""Files beside the weights that describe text, by name as Hugging Face libraries write them."""

_OTHER_TOKENIZERS = (
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "rwkv_vocab*.txt",
)


def find_tokenizer_files(
    folder: Path, allow_missing_tokenizer: bool, problems: list[Problem], warnings: list[Problem]
) -> dict[str, Path]:
    """Return name → path of the carried files that are present, sorted by name.

    Appends ``tokenizer_missing`` to the problems, or to the warnings when ``allow_missing_tokenizer``, and
    ``git_lfs_pointer`` or ``malformed_json`` when a file is there but is not what its name says.
    """
    files = {name: folder / name for name in CARRIED_FILES if (folder / name).is_file()}
    if REQUIRED_TOKENIZER_FILE in files:
        read_json_object(files[REQUIRED_TOKENIZER_FILE], problems)
    else:
        (warnings if allow_missing_tokenizer else problems).append(_missing(folder))
    for name in ("merges.txt", "vocab.txt", "chat_template.jinja"):
        pointer = lfs_pointer_problem(files[name]) if name in files else None
        if pointer is not None:
            problems.append(pointer)
    for name in ("added_tokens.json", "chat_template.json", "special_tokens_map.json", "vocab.json"):
        if name in files:
            read_json_object(files[name], problems)
    return files


def _missing(folder: Path) -> Problem:
    others = sorted({path.name for pattern in _OTHER_TOKENIZERS for path in folder.glob(pattern)})
    if others:
        remedy = "Convert it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes tokenizer.json"
    else:
        remedy = "Copy it from the model's repository, or build for token ids only with --allow-missing-tokenizer"
    return Problem(
        "tokenizer_missing",
        "the checkpoint has no tokenizer that a loader can run",
        where=str(folder),
        found=", ".join(others) if others else "no tokenizer file",
        expected=REQUIRED_TOKENIZER_FILE,
        remedy=remedy,
    )
