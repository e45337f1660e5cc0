"""Medians, ratios, bandwidth, tables, and what the kernel says of a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from markdown_table import markdown_table, megabytes, with_ratio
from measured_machine import describe_machine, processor_features, processor_name
from measured_process import CommandError, last_words, run_measured, size_of
from read_bandwidth import bytes_read_a_token, measure_read_bandwidth
from resident_memory import read_resident_memory
from rounds import largest_factor, paired_ratios, summarize

CPUINFO = "processor\t: 0\nmodel name\t: Some Processor @ 2 GHz\nflags\t\t: fpu avx2 avx512_bf16 avx2x\n"


def test_summaries_hold_median_and_range() -> None:
    summary = summarize([3.0, 1.0, 9.0])
    assert (summary.median, summary.least, summary.most) == (3.0, 1.0, 9.0)
    with pytest.raises(ValueError, match="no rounds"):
        summarize([])


def test_ratios_are_taken_round_by_round() -> None:
    assert paired_ratios([1.0, 2.0], [2.0, 2.0]) == [2.0, 1.0]
    with pytest.raises(ValueError, match="shorter"):
        paired_ratios([1.0, 2.0], [2.0])


def test_the_largest_factor_knows_no_direction() -> None:
    assert largest_factor([1.1, 0.5]) == pytest.approx(2.0)
    assert largest_factor([1.0]) == 1.0


def test_a_tied_embedding_is_read_whole_and_another_by_one_row() -> None:
    layer = ("layers.0.mlp.down_proj.weight", 1000, 10)
    assert bytes_read_a_token([("embed_tokens.weight", 800, 100), layer]) == 1800
    untied = [("embeddings.weight", 800, 100), layer, ("head.weight", 700, 100)]
    assert bytes_read_a_token(untied) == 8 + 1000 + 700


def test_the_bandwidth_probe_reads() -> None:
    bandwidth = measure_read_bandwidth(threads=2, buffer_bytes=2**20, passes=1)
    assert bandwidth.bytes_per_second > 1e6
    assert bandwidth.loop


def test_tables_align_figures_to_the_right() -> None:
    table = markdown_table(["name", "ms"], [["a", "1"], ["b", "2"]])
    assert table.splitlines() == ["| name | ms |", "| --- | ---: |", "| a | 1 |", "| b | 2 |"]
    with pytest.raises(ValueError, match="1 cells in a table of 2"):
        markdown_table(["name", "ms"], [["a"]])


def test_figures_have_separators_and_ratios() -> None:
    assert megabytes(1_234_567_890) == "1,235"
    assert with_ratio(1500.0, 1000.0) == "1,500.0 (× 1.50)"


def test_a_processor_is_named_with_the_instructions_it_has() -> None:
    assert processor_name(CPUINFO) == "Some Processor @ 2 GHz"
    assert processor_features(CPUINFO) == ["avx2", "avx512_bf16"]
    assert processor_features("") == []


def test_memory_is_read_from_the_kernels_words(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "status").write_text("Name:\tx y\nVmHWM:\t 30 kB\nRssAnon:\t 10 kB\nRssFile:\t 5 kB\nThreads:\t1\n")
    memory = read_resident_memory(7, tmp_path)
    assert memory is not None
    assert (memory.anonymous_bytes, memory.mapped_bytes, memory.peak_bytes) == (10 * 1024, 5 * 1024, 30 * 1024)
    assert read_resident_memory(8, tmp_path) is None


def test_a_command_is_timed_and_its_output_kept() -> None:
    took = run_measured(["sh", "-c", "sleep 0.05; echo done"])
    assert took.seconds >= 0.05
    assert took.peak_resident_bytes > 0
    assert took.output == "done\n"


def test_a_failing_command_gives_its_last_words() -> None:
    with pytest.raises(CommandError, match="no luck"):
        run_measured(["sh", "-c", "echo first >&2; echo no luck >&2; exit 3"])
    assert run_measured(["sh", "-c", "exit 3"], allowed_status=(0, 3)).output == ""


def test_the_words_of_rowpack_are_the_line_with_the_code() -> None:
    assert last_words("rowpack: no [backend_unknown]\n  remedy: other\n") == "rowpack: no [backend_unknown]"
    assert last_words("Traceback\nValueError: x\n\n") == "ValueError: x"
    assert last_words("") == ""


def test_sizes_count_every_file_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_bytes(b"12")
    assert size_of(tmp_path) == 5
    assert size_of(tmp_path / "a") == 3


def test_a_machine_is_described_with_threads_where_they_count() -> None:
    assert "2 threads used" in describe_machine(2, {"b": "2", "a": "1"})
    described = describe_machine(None, {"b": "2", "a": "1"})
    assert "threads" not in described
    assert described.endswith("a 1, b 2")
