"""Read the index of a sharded checkpoint: which shard holds which tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rowpack.checkpoint.json_files import read_json_object
from rowpack_loaders.errors import Problem

_SHARD_NAME = re.compile(r"[^/\\:\x00-\x1f]{1,255}")


@dataclass(frozen=True)
class ShardIndex:
    """Hold an index's table: tensor name → name of the shard file, which lies beside the index."""

    path: Path
    weight_map: dict[str, str]

    @property
    def shard_names(self) -> list[str]:
        """Names of the shard files, each once, sorted."""
        return sorted(set(self.weight_map.values()))


def read_shard_index(path: Path, problems: list[Problem]) -> ShardIndex | None:
    """Return the index, or append what is wrong with it and return ``None``.

    Codes: ``malformed_shard_index`` and those of ``read_json_object``. A shard is a plain file name: an
    index never leads out of its folder.
    """
    document = read_json_object(path, problems)
    if document is None:
        return None
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        found = "no weight_map" if weight_map is None else f"weight_map: {str(weight_map)[:40]}"
        problems.append(_malformed(path, found, "weight_map: an object from tensor name to file name"))
        return None
    for tensor, shard in weight_map.items():
        is_file_name = isinstance(shard, str) and _SHARD_NAME.fullmatch(shard) and shard not in (".", "..")
        if not is_file_name:
            found = f"{str(shard)[:80]!r} for tensor {tensor[:200]}"
            problems.append(_malformed(path, found, "the name of a file in the same folder"))
            return None
    return ShardIndex(path, weight_map)


def compare_index_with_shards(
    index: ShardIndex, shards: dict[str, set[str]], problems: list[Problem], warnings: list[Problem]
) -> None:
    """Compare the index with the tensor names that each readable shard really holds.

    ``shards`` has the shards that could be read; those that could not have their own problem already. Codes:
    ``tensor_missing_from_shard``, ``tensor_in_two_shards``, and as a warning ``tensor_not_in_index``.
    """
    holders: dict[str, list[str]] = {}
    for shard, names in sorted(shards.items()):
        for name in sorted(names):
            holders.setdefault(name, []).append(shard)
    for name, shard in sorted(index.weight_map.items()):
        if shard in shards and name not in shards[shard]:
            found = f"it in {holders[name][0]}" if name in holders else "it nowhere"
            problems.append(
                Problem(
                    "tensor_missing_from_shard",
                    f"the index places tensor {name} in a shard that does not hold it",
                    where=str(index.path.with_name(shard)),
                    found=found,
                    expected=f"it in {shard}",
                    remedy="Fetch the index and its shards again, all of the same revision",
                )
            )
    for name, names_of_shards in sorted(holders.items()):
        if len(names_of_shards) > 1:
            problems.append(
                Problem(
                    "tensor_in_two_shards",
                    f"tensor {name} is in more than one shard",
                    where=str(index.path.with_name(names_of_shards[0])),
                    found=", ".join(names_of_shards),
                    expected="each tensor once",
                    remedy="Remove shards that belong to another revision, or fetch the checkpoint again",
                )
            )
        elif name not in index.weight_map:
            warnings.append(
                Problem(
                    "tensor_not_in_index",
                    f"the index does not name tensor {name}; it is used all the same",
                    where=str(index.path.with_name(names_of_shards[0])),
                    found="a tensor without an entry",
                    expected="every tensor of a shard in the index",
                    remedy="Fetch the index again if the tensor should not be there",
                )
            )


def _malformed(path: Path, found: str, expected: str) -> Problem:
    return Problem(
        "malformed_shard_index",
        "the index does not say which shard holds which tensor",
        where=str(path),
        found=found,
        expected=expected,
        remedy="Fetch the index again",
    )
