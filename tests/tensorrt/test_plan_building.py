"""Building one plan in its process, with a pretended library: what it is asked for, and everything that can fail."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from compiled_models import CACHE_ROWS, Preparation, PretendedLibrary, build_plan

from rowpack.engines.backend import FileRange
from rowpack.engines.options import EngineOptions
from rowpack.engines.tensorrt import builder_process
from rowpack.engines.tensorrt.plan_build import estimated_peak_bytes
from rowpack_loaders.errors import RowpackError

Pretend = Callable[..., PretendedLibrary]


@pytest.fixture(scope="module")
def qwen(tiny_checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Preparation:
    return Preparation(tiny_checkpoints["qwen3_5"], tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module")
def rwkv(tiny_checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Preparation:
    return Preparation(tiny_checkpoints["rwkv"], tmp_path_factory.mktemp("rwkv"))


def expected_peak(preparation: Preparation) -> int:
    nodes = len(preparation.orders["decode"].model.graph.node)
    return estimated_peak_bytes(preparation.model.plan.tensor_bytes, nodes)


def failure(pretend: Pretend, preparation: Preparation, backend: str = "trt", **behaviour: Any) -> RowpackError:
    with pytest.raises(RowpackError) as caught:
        build_plan(pretend(backend, **behaviour).backend, preparation)
    return caught.value


def test_the_plan_arrives_whole_whatever_libraries_print(pretend: Pretend, rwkv: Preparation) -> None:
    library = pretend(filler_bytes=9 * 2**20 + 17)
    plan, engine, _ = build_plan(library.backend, rwkv)
    assert plan.endswith(bytes(9 * 2**20 + 17))
    assert b"prints to standard output" not in plan
    assert engine.measurement is not None
    assert engine.measurement.engine_bytes == len(plan)


def test_weights_come_from_the_mapped_section(pretend: Pretend, qwen: Preparation) -> None:
    asked = PretendedLibrary.asked_for(build_plan(pretend().backend, qwen)[0])
    section = qwen.weights.path.read_bytes()
    placed = {weight.spec.name: weight for weight in qwen.model.plan.tensors}
    assert asked["initializers"].keys() == placed.keys()
    for name, sha256 in asked["initializers"].items():
        start = placed[name].offset_bytes
        assert hashlib.sha256(section[start : start + placed[name].byte_count]).hexdigest() == sha256


def test_weights_may_lie_anywhere_in_a_file(pretend: Pretend, rwkv: Preparation, tmp_path: Path) -> None:
    """Inside an unfinished bundle, say: offsets count from the start of the section."""
    shifted = tmp_path / "shifted"
    shifted.write_bytes(bytes(8192) + rwkv.weights.path.read_bytes())
    builder = pretend().backend.open_builder(EngineOptions())
    here, there = (
        b"".join(bytes(piece) for piece in builder.build_engine(rwkv.orders["decode"], place, print).pieces())
        for place in (rwkv.weights, FileRange(shifted, 8192, rwkv.weights.length_bytes))
    )
    assert here == there


def test_what_full_tensorrt_is_asked_for(pretend: Pretend, qwen: Preparation) -> None:
    options = EngineOptions((), "ampere_plus", True, 2**28)
    asked = PretendedLibrary.asked_for(build_plan(pretend().backend, qwen, "prefill", options)[0])
    assert asked["flags"] == ["VERSION_COMPATIBLE"]  # TF32, on by default, is off
    assert asked["pools"] == {"WORKSPACE": 2**28}
    assert asked["hardware_compatibility"] == "AMPERE_PLUS"
    assert asked["capabilities"] == []
    assert asked["profile"]["attention_mask"] == [[1, CACHE_ROWS + 1], *[[16, CACHE_ROWS + 16]] * 2]
    assert asked["profile"]["token_id"] == [[1], [16], [16]]


def test_what_tensorrt_for_rtx_is_asked_for(pretend: Pretend, qwen: Preparation) -> None:
    options = EngineOptions(("12.0", "8.9"))
    asked = PretendedLibrary.asked_for(build_plan(pretend("trt_rtx").backend, qwen, "decode", options)[0])
    assert asked["capabilities"] == ["SM89", "SM120"]
    assert asked["flags"] == []
    assert asked["pools"] == {"WORKSPACE": 2**30}
    assert asked["hardware_compatibility"] == "NONE"
    assert asked["profile"] == {}


def test_the_process_is_always_the_same(pretend: Pretend, rwkv: Preparation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan's bytes depend on command line, environment and folder, so none of ours reaches the builder."""
    monkeypatch.setenv("A_VARIABLE_OF_THE_USER", "x" * 1000)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    asked = PretendedLibrary.asked_for(build_plan(pretend().backend, rwkv)[0])
    assert asked["arguments"] == [str(builder_process.CHILD_PROGRAM)]
    assert asked["folder"] == "/"
    environment = {name for name in asked["environment"] if not name.startswith("LC_")}
    assert environment <= {"PATH", *builder_process.PASSED_ENVIRONMENT}
    assert asked["environment"]["CUDA_VISIBLE_DEVICES"] == "1"


def test_the_record_of_a_plan(pretend: Pretend, qwen: Preparation) -> None:
    _, engine, told = build_plan(pretend().backend, qwen, "prefill", EngineOptions((), None, True))
    record: Any = engine.as_json("trt")
    assert (record["section"], record["backend"], record["backend_version"]) == ("prefill.plan", "trt", "11.4.0")
    assert record["resident_bytes"] == {"weights": 1000, "context": 300, "scratch": 200}
    assert record["rows"] == {"min": 1, "opt": 16, "max": 16}
    assert record["target"]["sm"] == ["8.9"]
    assert record["builder_flags"] == {
        "strongly_typed": True,
        "tf32": False,
        "workspace_bytes": 2**30,
        "hardware_compatibility": "none",
        "version_compatible": True,
        "timing_cache_sha256": None,
    }
    assert record["profile"]["token_id"] == {"min": [1], "opt": [16], "max": [16]}
    assert record["onnx_sha256"] == hashlib.sha256(engine.onnx).hexdigest()
    assert {node.name for node in onnx.load_model_from_string(engine.onnx).graph.node}
    assert any("layers" in text for text in told)


def test_what_a_build_takes_is_measured(pretend: Pretend, rwkv: Preparation) -> None:
    _, engine, _ = build_plan(pretend().backend, rwkv)
    measured = engine.measurement
    assert measured is not None
    assert 10 * 2**20 < measured.peak_resident_bytes < 2**30
    assert measured.estimated_peak_bytes == expected_peak(rwkv)
    assert measured.seconds > 0


def test_a_library_that_logs_no_memory_leaves_it_open(pretend: Pretend, rwkv: Preparation) -> None:
    _, engine, _ = build_plan(pretend(memory={}).backend, rwkv)
    resident = engine.as_json("trt")["resident_bytes"]
    assert resident == {"weights": rwkv.model.plan.tensor_bytes, "context": None}


def test_a_refused_layer_is_named(pretend: Pretend, rwkv: Preparation) -> None:
    refusal = {"node": "layers.1.time_mixing.wkv.out", "operator": "Div", "text": "Plugin not found"}
    error = failure(pretend, rwkv, parser_error=refusal, version="11.2.0")
    assert error.code == "engine_graph_refused"
    (problem,) = error.problems
    assert problem.where == "layers.1.time_mixing.wkv.out"
    assert "Div" in str(problem.found) and "Plugin not found" in str(problem.found)
    assert "11.2.0" in problem.message
    assert "newer" in str(problem.remedy)


@pytest.mark.parametrize(
    "change",
    [
        {"rename": {"logits": "scores"}},
        {"change": {"logits": {"shape": [-1, 64]}}},
        {"change": {"token_id": {"dtype": "INT64"}}},
        {"drop": ["present_den_0"]},
    ],
    ids=["name", "shape", "dtype", "missing"],
)
def test_a_network_of_other_tensors_is_not_compiled(pretend: Pretend, rwkv: Preparation, change: Any) -> None:
    assert failure(pretend, rwkv, **change).code == "engine_contract"


@pytest.mark.parametrize(
    "behaviour",
    [
        {"built": False, "log": [["ERROR", "Error Code 1: Myelin (Cannot compile 'layers.0.channel_mixing.key_U7')"]]},
        {"plan_and_false": True, "log": [["ERROR", "Cannot compile 'layers.0.channel_mixing.key_U7'"]]},
        {"log": [["INTERNAL_ERROR", "Assertion failed at layers.0.channel_mixing.key"]]},
        {"built": False, "print": "MyelinCheckException at layers.0.channel_mixing.key: CHECK(status)"},
    ],
    ids=["no plan", "plan and false", "a plan and an error in the log", "only printed"],
)
def test_any_logged_error_fails_the_build(pretend: Pretend, rwkv: Preparation, behaviour: Any) -> None:
    error = failure(pretend, rwkv, **behaviour)
    assert error.code == "engine_build_failed"
    assert error.problem.where == "layers.0.channel_mixing.key"
    operators = {node.name: node.op_type for node in rwkv.orders["decode"].model.graph.node}
    assert str(error.problem.found).startswith(f"operator {operators['layers.0.channel_mixing.key']}: ")
    assert error.problem.remedy


def test_no_plan_and_no_word_is_a_failure_too(pretend: Pretend, rwkv: Preparation) -> None:
    error = failure(pretend, rwkv, built=False)
    assert (error.code, error.problem.where) == ("engine_build_failed", "the decode engine")


def test_messages_about_the_missing_gpu_are_no_errors(pretend: Pretend, rwkv: Preparation) -> None:
    noise = [["ERROR", "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (cudaError 35)"]]
    plan, _, _ = build_plan(pretend(log=noise).backend, rwkv)
    assert plan
    error = failure(pretend, rwkv, log=[["ERROR", "the reason"], *noise], built=False)
    assert error.problem.found == "the reason"


@pytest.mark.parametrize("text", ["Error Code 2: OutOfMemory", "Requested amount: out of memory", "std::bad_alloc"])
def test_out_of_memory_says_how_much_is_needed(pretend: Pretend, rwkv: Preparation, text: str) -> None:
    error = failure(pretend, rwkv, built=False, log=[["ERROR", text]])
    assert error.code == "engine_build_out_of_memory"
    assert str(expected_peak(rwkv)) in str(error.problem.expected)


def test_a_process_the_system_kills_ran_out_of_memory(pretend: Pretend, rwkv: Preparation) -> None:
    assert failure(pretend, rwkv, signal="SIGKILL").code == "engine_build_out_of_memory"
    aborted = failure(pretend, rwkv, signal="SIGABRT", print="terminate called after throwing 'std::bad_alloc'")
    assert aborted.code == "engine_build_out_of_memory"


def test_a_crash_is_told_with_what_was_printed(pretend: Pretend, rwkv: Preparation) -> None:
    error = failure(pretend, rwkv, signal="SIGSEGV", print="a last word about layers.0.channel_mixing.key")
    assert error.code == "engine_builder_crashed"
    assert "SIGSEGV" in str(error.problem.found) and "a last word" in str(error.problem.found)
    assert error.problem.where == "layers.0.channel_mixing.key"


def test_a_capability_the_library_refuses(pretend: Pretend, rwkv: Preparation) -> None:
    error = failure(pretend, rwkv, "trt_rtx", refuse_capabilities=["SM120"])
    assert error.code == "engine_build_failed"
    assert "SM120" in str(error.problem.found)


def test_a_reader_that_stops_ends_the_process(pretend: Pretend, rwkv: Preparation) -> None:
    """A full disk, say: the consumer of the pieces raises, and the builder is gone."""
    library = pretend(filler_bytes=64 * 2**20)
    builder = library.backend.open_builder(EngineOptions())
    pieces: Any = builder.build_engine(rwkv.orders["decode"], rwkv.weights, print).pieces()
    next(pieces)
    process = pieces.gi_frame.f_locals["process"]
    assert process.exit_status is None
    pieces.close()
    assert process.exit_status == -9


def test_a_short_plan_is_refused(pretend: Pretend, rwkv: Preparation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library does not care what a writer returns; we compare the bytes that arrived with those it wrote."""
    events = builder_process.BuilderProcess.events

    def shortened(self: Any) -> Any:
        for event in events(self):
            yield event[:-1] if isinstance(event, memoryview) else event

    monkeypatch.setattr(builder_process.BuilderProcess, "events", shortened)
    assert failure(pretend, rwkv).code == "plan_incomplete"


def test_the_timing_cache_goes_from_build_to_build(pretend: Pretend, rwkv: Preparation, tmp_path: Path) -> None:
    cache = tmp_path / "times.cache"
    options = EngineOptions(timing_cache=cache)
    library = pretend()
    digests = []
    for built in (1, 2):
        _, engine, _ = build_plan(library.backend, rwkv, options=options)
        assert cache.read_bytes() == b"measured;" * built
        digests.append(engine.builder_flags["timing_cache_sha256"])
        assert digests[-1] == hashlib.sha256(cache.read_bytes()).hexdigest()
    assert digests[0] != digests[1]
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_timing_cache_that_cannot_be_used(pretend: Pretend, rwkv: Preparation, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "times.cache"):
        with pytest.raises(RowpackError) as caught:
            build_plan(pretend().backend, rwkv, options=EngineOptions(timing_cache=path))
        assert caught.value.code == "timing_cache_unusable"
    with pytest.raises(RowpackError) as caught:
        options = EngineOptions(timing_cache=tmp_path / "times.cache")
        build_plan(pretend(refuse_cache=True).backend, rwkv, options=options)
    assert "another device" in str(caught.value.problem.found)


@pytest.mark.parametrize("device", ["8.9", None])
def test_a_written_plan_is_loaded_where_its_gpu_is(
    pretend: Pretend, rwkv: Preparation, tmp_path: Path, device: str | None
) -> None:
    library = pretend("trt_rtx", device=device)
    plan, engine, _ = build_plan(library.backend, rwkv, "prefill")
    tensors = PretendedLibrary.asked_for(plan)["tensors"]
    written = tmp_path / "written"
    written.write_bytes(bytes(4096) + plan)
    builder = library.backend.open_builder(EngineOptions())
    builder.check_written(engine, FileRange(written, 4096, len(plan)))
    tensors[0]["profile"] = [[1], [16], [64]]
    changed = pretend("trt_rtx", device=device, engine_tensors=tensors).backend.open_builder(EngineOptions())
    if device is None:
        changed.check_written(engine, FileRange(written, 4096, len(plan)))  # nothing here can load it
    else:
        with pytest.raises(RowpackError, match="engine_contract"):
            changed.check_written(engine, FileRange(written, 4096, len(plan)))


def test_a_written_plan_that_does_not_load(pretend: Pretend, rwkv: Preparation, tmp_path: Path) -> None:
    library = pretend(refuse_plan=True)
    plan, engine, _ = build_plan(library.backend, rwkv)
    written = tmp_path / "written"
    written.write_bytes(plan)
    with pytest.raises(RowpackError) as caught:
        library.backend.open_builder(EngineOptions()).check_written(engine, FileRange(written, 0, len(plan)))
    assert caught.value.code == "plan_not_loadable"
    assert "Version tag" in str(caught.value.problem.found)
