"""Older bundles become valid bundles of today: nothing is lost, nothing is guessed, nothing is written in place."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import older_writers
import pytest

from rowpack.bundle.migration import migrate
from rowpack.cli import main
from rowpack_loaders import load, open_bundle, validate
from rowpack_loaders.errors import RowpackError

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "schema" / "vectors" / "good" / "older").glob("*.bundle"))


def sections_of(path: Path) -> dict[str, bytes]:
    """Return every section of a bundle by name."""
    with open_bundle(path) as bundle:
        return {name: bytes(bundle.section_view(name)) for name in bundle.sections}


@pytest.mark.parametrize("old", SAMPLES, ids=lambda path: path.stem)
def test_a_converted_bundle_is_valid_and_carries_every_section(old: Path, tmp_path: Path) -> None:
    before = old.read_bytes()
    report = migrate(old, tmp_path / "new.bundle")
    checked = validate(report.path)
    assert checked.errors == []
    assert checked.warnings == []
    renamed = report.renamed_sections
    stored, carried = sections_of(old), sections_of(report.path)
    assert {renamed.get(name, name): data for name, data in stored.items()}.items() <= carried.items()
    assert set(carried) - {renamed.get(name, name) for name in stored} <= {"manifest.json", "runtime.json"}
    assert old.read_bytes() == before
    with open_bundle(report.path) as bundle:
        origin: Any = bundle.manifest["origin"]
    assert origin["sha256"] == hashlib.sha256(before).hexdigest()
    assert origin["length"] == len(before)
    assert list(report.unknown) == origin["unknown"]
    assert "/model/parameter_count" in report.unknown


def test_the_header_of_august_is_kept_as_it_stood(tmp_path: Path) -> None:
    (old,) = (path for path in SAMPLES if path.stem == "august-2026-qwen3_5-split")
    migrate(old, tmp_path / "new.bundle")
    with open_bundle(tmp_path / "new.bundle") as bundle:
        origin: Any = bundle.manifest["origin"]
        assert json.loads(origin["header"])["gpu_name"] == "NVIDIA GB10"
        assert bundle.engines["decode"].section == "engine.plan"
        assert bundle.engines["decode"].backend_version == "10.13.2.6"
        runtime = json.loads(bundle.read_section("runtime.json"))
    assert (len(runtime), runtime["decoder_engine_layout"], runtime["conv_dim"]) == (20, "split", 32)


def test_a_bfloat16_engine_shows_float32_to_loaders_that_count_keys(tmp_path: Path) -> None:
    (old,) = (path for path in SAMPLES if path.stem == "august-2026-rwkv-single")
    migrate(old, tmp_path / "new.bundle")
    with open_bundle(tmp_path / "new.bundle") as bundle:
        model: Any = bundle.manifest["model"]
        assert model["precision"] == "bf16"
        assert json.loads(bundle.read_section("runtime.json"))["precision"] == "fp32"


def test_an_end_token_that_only_the_generation_config_names_is_told_to_older_loaders_too(tmp_path: Path) -> None:
    old = tmp_path / "old.bundle"
    runtime = json.dumps({**older_writers.RWKV_RUNTIME, "eos_token_id": -1}).encode()
    sections = {"engine.plan": b"x", "runtime.json": runtime, "generation_config.json": b'{"eos_token_id": [9, 4]}'}
    old.write_bytes(older_writers.format_1("rwkv", "trt", sections))
    migrate(old, tmp_path / "new.bundle")
    with open_bundle(tmp_path / "new.bundle") as bundle:
        assert bundle.tokens.eos_ids == (9, 4)
        assert json.loads(bundle.read_section("runtime.json"))["eos_token_id"] == 9


def older_of(bundle_path: Path, old: Path, **runtime_changes: Any) -> Path:
    """Write what a bundle of today holds as another program's format 1, without manifest and golden vectors."""
    sections = sections_of(bundle_path)
    sections = {name: data for name, data in sections.items() if name not in ("manifest.json", "golden.msgpack.zst")}
    runtime = {**json.loads(sections["runtime.json"]), **runtime_changes}
    with open_bundle(bundle_path) as bundle:
        family = bundle.family
    old.write_bytes(older_writers.format_1(family, "ort", {**sections, "runtime.json": json.dumps(runtime).encode()}))
    return old


@pytest.mark.parametrize("layout", ["single", "split"])
@pytest.mark.parametrize("family", ["qwen3_5", "rwkv"])
def test_a_converted_bundle_generates_what_it_did(
    family: str, layout: str, tiny_bundles: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    today = tiny_bundles[family, layout]
    old = older_of(today, tmp_path / "old.bundle")
    report = migrate(old, tmp_path / "new.bundle", model_id="tiny", revision="r1", prefill_rows=16)
    assert validate(report.path).errors == []
    assert not {pointer for pointer in report.unknown if pointer.endswith(("opset", "onnx_sha256", "ir_version"))}
    assert not {"/model/id", "/model/revision", "/model/parameter_count"} & set(report.unknown)
    assert "/engines/decode/inputs" not in report.assumed, "read from the graph"
    assert "/limits/prefill_rows" not in report.assumed, "given"
    prompt = list(range(3, 40))
    wanted = load(today).generate(prompt, 8, stop_token_ids=[])
    found = load(report.path).generate(prompt, 8, stop_token_ids=[])
    assert found.token_ids == wanted.token_ids
    assert found.prefill.mode == wanted.prefill.mode
    with open_bundle(today) as built, open_bundle(report.path) as converted:
        assert [(s.input, s.dtype, s.shape) for s in converted.states] == [
            (s.input, s.dtype, s.shape) for s in built.states
        ], "the states that follow from runtime.json are those of the family"
        for role, engine in built.engines.items():
            assert converted.engines[role].inputs == engine.inputs
            assert converted.engines[role].outputs == engine.outputs


def test_the_same_input_gives_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = SAMPLES[0]
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "another-name.bundle"
    copy.write_bytes(old.read_bytes())
    migrate(old, tmp_path / "a.bundle")
    monkeypatch.chdir(tmp_path)
    migrate(copy, Path("b.bundle"))
    assert (tmp_path / "a.bundle").read_bytes() == (tmp_path / "b.bundle").read_bytes()


def refusal(old: Path, new: Path) -> str:
    """Return the code with which a migration is refused; the folder of ``new`` is as before."""
    before = sorted(new.parent.iterdir())
    with pytest.raises(RowpackError) as caught:
        migrate(old, new)
    assert sorted(new.parent.iterdir()) == before
    return caught.value.code


def test_a_bundle_is_never_converted_in_place(tmp_path: Path) -> None:
    old = tmp_path / "old.bundle"
    old.write_bytes(SAMPLES[0].read_bytes())
    (tmp_path / "hard.bundle").hardlink_to(old)
    (tmp_path / "soft.bundle").symlink_to(old)
    for new in ("old.bundle", "hard.bundle", "soft.bundle"):
        assert refusal(old, tmp_path / new) == "migration_in_place"
    assert old.read_bytes() == SAMPLES[0].read_bytes()


@pytest.mark.parametrize("prefill_rows", [0, 4097])
def test_impossible_prefill_rows_are_refused(prefill_rows: int, tmp_path: Path) -> None:
    with pytest.raises(RowpackError) as caught:
        migrate(SAMPLES[0], tmp_path / "new.bundle", prefill_rows=prefill_rows)
    assert caught.value.code == "prefill_rows_range"


def test_a_bundle_of_today_needs_no_migration(tiny_bundles: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    assert refusal(tiny_bundles["rwkv", "single"], tmp_path / "new.bundle") == "migration_not_needed"


RUNTIME = json.dumps(older_writers.RWKV_RUNTIME).encode()
UNUSABLE = {
    "not portable": {"engine.plan": b"x", "runtime.json": RUNTIME, "Vocab.txt": b"x"},
    "an engine nobody took": {"engine.plan": b"x", "engine.onnx": b"x", "runtime.json": RUNTIME},
    "two names for one": {"engine.plan": b"x", "engine_plan": b"x", "runtime.json": RUNTIME},
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_sections_that_cannot_be_carried_are_named(name: str, tmp_path: Path) -> None:
    old = tmp_path / "old.bundle"
    old.write_bytes(older_writers.format_1("rwkv", "trt", UNUSABLE[name]))
    assert refusal(old, tmp_path / "new.bundle") == "migration_section_unusable"


def test_a_graph_with_other_tensors_is_not_described_as_if_it_had_them(
    tiny_bundles: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    old = older_of(tiny_bundles["rwkv", "single"], tmp_path / "old.bundle", num_hidden_layers=3)
    assert refusal(old, tmp_path / "new.bundle") == "older_engine_mismatch"


def test_an_older_file_that_changes_on_the_way_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rowpack.bundle.writer import BundleWriter

    old = tmp_path / "old.bundle"
    old.write_bytes(SAMPLES[0].read_bytes())
    add_section = BundleWriter.add_section

    def changing(self: BundleWriter, *arguments: Any, **options: Any) -> Any:
        old.write_bytes(old.read_bytes() + b"\0")
        return add_section(self, *arguments, **options)

    monkeypatch.setattr(BundleWriter, "add_section", changing)
    assert refusal(old, tmp_path / "new.bundle") == "container_changed_while_reading"


def test_a_large_bundle_streams(tmp_path: Path) -> None:
    import tracemalloc

    old = tmp_path / "old.bundle"
    header = older_writers.format_1("rwkv", "trt", {"runtime.json": RUNTIME, "engine.plan": b""})
    large = 64 * 2**20
    header = header.replace(b'"length":0}', b'"length":%d}' % large)
    header = header[:8] + (len(header) - 16 - len(RUNTIME)).to_bytes(8, "little") + header[16:]
    old.write_bytes(header)
    with old.open("r+b") as file:
        file.truncate(len(header) + large)
    tracemalloc.start()
    migrate(old, tmp_path / "new.bundle")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 24 * 2**20


def test_the_command_tells_what_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tmp_path / "new.bundle"
    old = next(path for path in SAMPLES if path.stem == "august-2026-qwen3_5-split")
    assert main(["migrate", str(old), "-o", str(new), "--revision", "abc", "--progress", "none"]) == 0
    text = capsys.readouterr().out
    assert "the form of August 2026" in text
    assert "engine_plan → engine.plan" in text
    assert "\n  /layout_decision\n" in text
    assert "/model/revision" not in text
    new.unlink()
    assert main(["migrate", str(old), "-o", str(new), "--json", "--progress", "none"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["form"], report["path"]) == ("august_2026", str(new))
    assert "/model/revision" in report["unknown"]
    assert main(["migrate", str(new), "-o", str(old), "--json", "--progress", "none"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "migration_not_needed"
    assert main(["inspect", str(old)]) == 0
    assert "the form of August 2026" in capsys.readouterr().out
    assert main(["inspect", str(new)]) == 0
    assert "converted from" in capsys.readouterr().out
