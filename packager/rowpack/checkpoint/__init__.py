"""Checkpoint folders: shards, index, torch files, LFS pointers, tokenizer and generation config.

``open_checkpoint(path)`` checks everything at once and hands out tensors lazily; ``check_tensors`` compares
them with what a family needs.
"""

from __future__ import annotations

from rowpack.checkpoint.config_search import Changes, NeededTensors
from rowpack.checkpoint.disagreement import ConfigPart, disagreements, disagreements_beside
from rowpack.checkpoint.folder import Checkpoint, InputFile, open_checkpoint, raise_problems
from rowpack.checkpoint.requirements import check_tensors
from rowpack.checkpoint.tensors import READABLE_DTYPES, TensorInfo

__all__ = [
    "READABLE_DTYPES",
    "Changes",
    "Checkpoint",
    "ConfigPart",
    "InputFile",
    "NeededTensors",
    "TensorInfo",
    "check_tensors",
    "disagreements",
    "disagreements_beside",
    "open_checkpoint",
    "raise_problems",
]
