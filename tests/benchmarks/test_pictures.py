"""What pictures are drawn from; drawing itself needs a library that tests have not."""

from __future__ import annotations

from pathlib import Path

from growth import PARTS, keep
from picture_style import seconds_words, shape_name
from pictures import PICTURES
from pictures_of_growth import lengths_of, prompt_lines


def prompt(contender: str, tokens: int) -> dict[str, object]:
    """Return what growth.py writes of one prompt."""
    return {"contender": contender, "tokens": tokens, "prefill_ms": 1.0, "anonymous_bytes": 1}


RESULTS = {
    "prompts": [prompt("rowpack chunked", 1), prompt("rowpack chunked", 4), prompt("an unknown peer", 1)],
    "long-prompts": {"layers": "4 of 24 layers", "prompts": [prompt("rowpack chunked", 64)]},
}


def test_every_part_has_a_picture_but_the_one_that_is_a_table() -> None:
    assert {part for picture in PICTURES for part in picture.parts} == set(PARTS) - {"capacity"}
    assert len({picture.name for picture in PICTURES}) == len(PICTURES)


def test_each_contender_is_a_line_and_fewer_layers_are_told_apart() -> None:
    lines = list(prompt_lines(RESULTS))
    labels = ["rowpack chunked", "an unknown peer", "rowpack chunked, 4 of 24 layers"]
    assert [label for label, _, _ in lines] == labels
    assert [len(entries) for _, entries, _ in lines] == [2, 1, 1]
    whole, _, thin = (style for _, _, style in lines)
    assert whole["color"] == thin["color"]
    assert "linestyle" not in whole
    assert thin["linestyle"] == "--"


def test_the_axis_is_marked_where_something_was_measured() -> None:
    assert lengths_of(RESULTS) == [1, 4, 64]
    assert lengths_of({}) == []


def test_words_of_axes_and_titles() -> None:
    assert [seconds_words(value) for value in (0.001, 0.1, 1.0, 1000.0)] == ["1 ms", "100 ms", "1 s", "1,000 s"]
    assert shape_name("rwkv4-169m") == "RWKV-4 169m shape"
    assert shape_name("small") == "small shape"


def test_a_part_that_is_measured_again_replaces_that_part_only(tmp_path: Path) -> None:
    path = tmp_path / "growth.json"
    keep({"shape": "a", "bytes": [1], "roof": [1]}, path)
    keep({"shape": "a", "bytes": [2]}, path)
    assert '"roof"' in path.read_text()
    keep({"shape": "b", "bytes": [3]}, path)
    assert '"roof"' not in path.read_text()
