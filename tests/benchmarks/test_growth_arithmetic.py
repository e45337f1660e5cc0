"""Shapes that grow, the roof over a machine, when a prompt is too long to be run, and the tables of growth."""

from __future__ import annotations

from pathlib import Path

import pytest
from artifacts import Environments, announce_no_mtp, family_of
from bundle_bytes import BundleBytes, bytes_table
from growing_shapes import text_part, wide_rwkv, with_layers, wkv_tensor_bytes
from growth_models import ModelFigures, layers_table
from growth_prompts import PEERS, PromptFigures, expected_seconds, growing_contenders, prompt_tables
from growth_start_up import smallest_runs
from growth_wkv import WkvFigures, wkv_table
from machine_roof import MachineRoof, narrow_step, roof_points

from rowpack.cli.commands import COMMANDS
from rowpack.synthesis.published_shapes import published_config


def prompt(tokens: int, milliseconds: float, contender: str = "a") -> PromptFigures:
    """Return the figures of one prompt."""
    return PromptFigures(contender, tokens, milliseconds, 2.0, 10**6, 2 * 10**6, 4 * 10**6)


def model(size: int, anonymous_mb: int) -> ModelFigures:
    """Return a model that held 100 MB when loaded."""
    return ModelFigures(size, 142, 1.0, 0.1, 50.0, 5.0, 100 * 10**6, anonymous_mb * 10**6, 0, 0)


def test_layers_grow_in_the_order_of_the_published_kinds() -> None:
    published = published_config("qwen3_5-0.8b")
    grown = text_part(with_layers(published, 6, vocabulary_size=100))
    assert grown["num_hidden_layers"] == 6
    assert grown["layer_types"] == (["linear_attention"] * 3 + ["full_attention"]) * 1 + ["linear_attention"] * 2
    assert (grown["vocab_size"], grown["eos_token_id"]) == (100, 99)
    assert text_part(published)["num_hidden_layers"] == 24, "the published config is left alone"


def test_the_wide_layer_is_wide_where_wkv_is() -> None:
    config = wide_rwkv(published_config("rwkv4-14b"), 5120)
    assert (config["num_hidden_layers"], config["attention_hidden_size"], config["intermediate_size"]) == (1, 5120, 256)


def test_the_exponents_of_a_chunk_have_one_row_more() -> None:
    assert wkv_tensor_bytes(64, 5120) == 65 * 64 * 5120 * 4


def test_what_a_prompt_will_take_follows_from_the_longest_run() -> None:
    figures = [prompt(1, 100.0), prompt(5, 500.0), prompt(5, 9e9, contender="b")]
    assert expected_seconds(figures, "a", 15) == pytest.approx(1.5)
    assert expected_seconds(figures, "c", 16) == 0.0


def test_what_is_read_once_a_prompt_is_not_expected_to_grow() -> None:
    assert expected_seconds([prompt(1, 5000.0)], "a", 4) == pytest.approx(5.0)
    assert expected_seconds([prompt(1, 5000.0), prompt(4, 4800.0)], "a", 16) == pytest.approx(4.8)


def test_prompts_that_one_contender_did_not_run_stay_empty() -> None:
    times, sizes = prompt_tables([prompt(1, 100.0), prompt(4, 200.0), prompt(1, 300.0, "b")]).split("\n\n")
    assert times.splitlines()[-1] == "| 4 | 200.0 | 50.00 | 2.0 |  |  | |"
    assert sizes.splitlines()[-1] == "| 4 | 1 + 2 (4) | |"


def test_the_roof_is_the_lower_of_its_limits() -> None:
    roof = MachineRoof(operations_per_second=100.0, bytes_per_second=10.0)
    assert roof.attainable(2.0) == 20.0
    assert roof.attainable(50.0) == 100.0


def test_a_step_does_half_an_operation_a_byte_and_a_chunk_as_many_times_as_it_has_rows() -> None:
    step, chunk, two_chunks = roof_points([("step", 1, 1.0), ("chunk", 64, 1.0), ("two", 128, 1.0)], 4000, 0, 64)
    assert step.operations_per_byte == 0.5
    assert chunk.operations_per_byte == two_chunks.operations_per_byte == 32.0
    assert step.operations_per_second == 2 * 1000 / 1e-3


def test_the_head_works_on_one_row_of_a_prompt() -> None:
    (point,) = roof_points([("chunk", 64, 1.0)], 0, 4000, 64)
    assert point.operations_per_byte == 0.5


def test_a_step_with_narrow_weights_does_the_operations_of_the_wide_ones() -> None:
    point = narrow_step("int8", 1.0, float32_bytes=4000, read_bytes=1000)
    assert point.operations_per_byte == 2.0
    assert point.operations_per_second == 2 * 1000 / 1e-3


def test_every_command_has_a_smallest_run(tmp_path: Path) -> None:
    assert smallest_runs(tmp_path).keys() == {command.name for command in COMMANDS}


def test_peers_run_in_their_own_environment_and_with_their_own_limit() -> None:
    where = Environments("peers/python", None, "own/python", peers_path="peers")
    chunked, loop, transformers, llama_cpp = growing_contenders(["transformers", "llama.cpp"], where, 20.0, 150.0)
    assert (chunked.python, chunked.most_seconds, loop.most_seconds) == ("own/python", 150.0, 20.0)
    assert (transformers.python, transformers.import_path, transformers.most_seconds) == ("peers/python", "peers", 20.0)
    # Its libraries are opened by this project's Python, which need not have the peers' packages.
    assert (llama_cpp.python, llama_cpp.import_path) == ("own/python", None)
    assert set(PEERS) >= {"transformers", "llama.cpp"}


def test_memory_of_chunks_is_compared_with_the_exponents() -> None:
    mb = 10**6
    blocks = WkvFigures(64, 8, 50.0, 100 * mb, 142 * mb, 300 * mb, 342 * mb)
    written_out = WkvFigures(64, 64, 60.0, 100 * mb, 270 * mb, 300 * mb, 470 * mb)
    rows = wkv_table([blocks, written_out]).splitlines()[-2:]
    assert rows[0] == "| 64 | blocks of 8 | 85 | 100 | 42 | 342 | 0.49 | 50.0 |"
    assert rows[1] == "| 64 | written out | 85 | 100 | 170 | 470 | 2.00 | 60.0 |"


def test_a_row_for_each_model() -> None:
    assert len(layers_table([model(4, 1), model(8, 2)]).splitlines()) == 4


def test_two_engines_are_compared_with_one_of_the_same_precision() -> None:
    figures = [
        BundleBytes("fp32", "single", 100 * 10**6, 10 * 10**6, 90 * 10**6),
        BundleBytes("fp32", "split", 101 * 10**6, 20 * 10**6, 90 * 10**6),
    ]
    assert bytes_table(figures).splitlines()[-1] == "| fp32 split | 101 | 1.010 | 20 | 90 | 1.100 |"


def test_shapes_belong_to_families(tmp_path: Path) -> None:
    assert family_of("qwen3_5-0.8b") == "qwen3_5"
    assert family_of("rwkv4-169m") == "rwkv4"
    path = tmp_path / "shape.json"
    path.write_text('{"model_type": "rwkv"}')
    assert family_of(str(path)) == "rwkv4"
    path.write_text('{"text_config": {"mtp_num_hidden_layers": 1}}')
    announce_no_mtp(path)
    assert '"mtp_num_hidden_layers": 0' in path.read_text()
