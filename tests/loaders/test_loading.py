"""Loading bundles: which engines, on what, and every refusal."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from toy_models import HYBRID, VOCAB, ToyModel, engine_onnx, toy_manifest, write_toy_bundle, write_toy_parts

from rowpack_loaders import RowpackError, load, mapped_section, onnx_wire
from rowpack_loaders import decoder as decoder_module
from rowpack_loaders.decoder import Decoder
from rowpack_loaders.host import usable_core_count
from rowpack_loaders.model_description import describe_model
from rowpack_loaders.runtimes import Runtime, load_runtime


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_bundle(tmp_path_factory.mktemp("load") / "toy.bundle", HYBRID)


def refused(call: Callable[[], object]) -> RowpackError:
    with pytest.raises(RowpackError) as caught:
        call()
    return caught.value


def test_threads_default_to_the_usable_cores(bundle: Path) -> None:
    assert load(bundle).runtime.thread_count == usable_core_count()
    assert load(bundle, threads=3).runtime.thread_count == 3
    for threads in (0, -1, 1.5, True):
        assert refused(lambda threads=threads: load(bundle, threads=threads)).code == "thread_count_invalid"


def test_device_and_runtime_are_named_when_unknown(bundle: Path) -> None:
    assert load(bundle, device="cpu", runtime="ort").runtime.backend == "ort"
    assert refused(lambda: load(bundle, device="cuda:0")).code == "device_unsupported"
    error = refused(lambda: load(bundle, runtime="mystery"))
    assert error.code == "runtime_unknown"
    assert "mystery" in str(error) and "ort" in str(error)


def test_layouts(bundle: Path, tmp_path: Path) -> None:
    one = load(bundle, layout="single")
    assert not one.runtime.has_prefill_engine
    assert one.generate([1, 2], 2).prefill.mode == "token-loop"
    assert load(bundle, layout="split").runtime.has_prefill_engine
    single = write_toy_bundle(tmp_path / "single.bundle", ToyModel(split=False))
    assert refused(lambda: load(single, layout="split")).code == "prefill_engine_missing"
    assert refused(lambda: load(single, layout="double")).code == "layout_unknown"


def test_engines_go_on_after_the_file_is_closed_and_replaced(tmp_path: Path) -> None:
    path = write_toy_bundle(tmp_path / "toy.bundle", HYBRID)
    with load(path, threads=1) as decoder:
        session = decoder.session()
        expected = session.prefill([1, 2, 3])
    decoder.close()
    write_toy_bundle(path, ToyModel(attention=False))
    assert np.array_equal(session.prefill([1, 2, 3]), expected)
    assert np.array_equal(decoder.session().prefill([1, 2, 3]), expected)


def test_parts_without_a_bundle_make_a_decoder(hybrid: Decoder, tmp_path: Path) -> None:
    model = describe_model(toy_manifest(HYBRID))
    engines = {"decode": engine_onnx(HYBRID, rows=1), "prefill": engine_onnx(HYBRID, rows=None)}
    runtime = load_runtime("ort", model, engines, write_toy_parts(tmp_path, HYBRID), thread_count=1)
    decoder = Decoder(model, runtime)
    assert decoder.generate([1, 2, 3], 5).token_ids == hybrid.generate([1, 2, 3], 5).token_ids
    assert not decoder.has_tokenizer
    decoder.close()


def test_too_little_memory_for_the_second_engine_warns_and_runs(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "available_host_memory", lambda: 1000)
    assert load(bundle).runtime.has_prefill_engine, "weights are shared, so the second engine costs nothing"
    monkeypatch.setattr(decoder_module, "second_engine_bytes", lambda model: 1001)
    with pytest.warns(UserWarning, match="1001 bytes"):
        decoder = load(bundle)
    assert not decoder.runtime.has_prefill_engine
    assert decoder.generate([1, 2], 2).prefill.mode == "token-loop"
    assert load(bundle, layout="split").runtime.has_prefill_engine


def test_running_out_of_memory_while_loading_warns_and_runs(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = decoder_module.load_runtime

    def fails_for_two(backend: str, model: Any, engines: Any, weights: Any, **options: Any) -> Any:
        if len(engines) > 1:
            raise RowpackError("engine_out_of_memory", "There is not enough memory")
        return real(backend, model, engines, weights, **options)

    monkeypatch.setattr(decoder_module, "load_runtime", fails_for_two)
    with pytest.warns(UserWarning, match="ran out of memory"):
        assert not load(bundle).runtime.has_prefill_engine
    assert refused(lambda: load(bundle, layout="split")).code == "engine_out_of_memory"


def test_the_second_engine_costs_its_weights_when_they_are_not_shared() -> None:
    manifest = toy_manifest(ToyModel())
    manifest["engines"]["prefill"]["resident_bytes"] = {"weights": 700, "context": 50}
    assert decoder_module.second_engine_bytes(describe_model(manifest)) == 50
    del manifest["weights"]
    assert decoder_module.second_engine_bytes(describe_model(manifest)) == 750


def test_a_changed_engine_is_not_loaded(bundle: Path, tmp_path: Path) -> None:
    data = bytearray(bundle.read_bytes())
    at = data.rindex(b"decay_table", 0, data.rindex(b"head.weight"))
    data[at] ^= 1
    path = tmp_path / "changed.bundle"
    path.write_bytes(data)
    error = refused(lambda: load(path))
    assert error.code == "section_digest_mismatch"
    assert "engine.onnx" in str(error) or "prefill.onnx" in str(error)


def test_a_failed_load_leaves_no_file_open(bundle: Path) -> None:
    def times_open() -> int:
        gc.collect()
        return sum(link.exists() and link.samefile(bundle) for link in Path("/proc/self/fd").iterdir() if link.exists())

    before = times_open()
    refused(lambda: load(bundle, device="cuda"))
    assert times_open() == before
    decoder = load(bundle)
    assert times_open() > before
    del decoder
    assert times_open() == before


LoadParts = Callable[..., Runtime]


@pytest.fixture
def load_parts(tmp_path: Path) -> LoadParts:
    """Load one engine over the toy weights, or over another weight section or by another manifest."""

    def load_them(engine: bytes, manifest: dict[str, Any] | None = None, section: bytes | None = None) -> Runtime:
        model = describe_model(manifest or toy_manifest(ToyModel(split=False)))
        return load_runtime("ort", model, {"decode": engine}, write_toy_parts(tmp_path, HYBRID, section))

    return load_them


def edited(change: Callable[[onnx.ModelProto], object]) -> bytes:
    model = onnx.load_model_from_string(engine_onnx(HYBRID, rows=1))
    change(model)
    serialized: bytes = model.SerializeToString()
    return serialized


def test_what_is_no_engine_is_refused(load_parts: LoadParts) -> None:
    for data in (b"", b"garbage", engine_onnx(HYBRID, rows=1)[:200]):
        error = refused(lambda data=data: load_parts(data))
        assert error.code in ("engine_load_failed", "engine_io_mismatch", "onnx_malformed")
        assert "engine.onnx" in str(error)


def test_an_engine_that_is_not_the_manifest_s_is_refused(load_parts: LoadParts) -> None:
    manifest = toy_manifest(ToyModel(split=False))
    renamed = edited(lambda model: setattr(model.graph.input[0], "name", "tokens"))
    assert refused(lambda: load_parts(renamed)).code in ("engine_load_failed", "engine_io_mismatch")
    prefill = engine_onnx(HYBRID, rows=None)
    load_parts(prefill)  # free dimensions take one row as well
    manifest["tokens"]["vocab_size"] = VOCAB + 1
    for tensor in manifest["engines"]["decode"]["outputs"]:
        if tensor["name"] == "logits":
            tensor["shape"] = [1, VOCAB + 1]
    error = refused(lambda: load_parts(engine_onnx(HYBRID, rows=1), manifest))
    assert error.code == "engine_io_mismatch"
    assert "logits" in str(error) and str(VOCAB) in str(error) and str(VOCAB + 1) in str(error)


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "secret", "sub/weights.safetensors"])
def test_an_engine_cannot_read_another_file(load_parts: LoadParts, tmp_path: Path, location: str) -> None:
    secret = np.full(2**16, 1e6, dtype=np.float32).tobytes()
    for path in (tmp_path / "secret", tmp_path.parent / "secret"):
        path.write_bytes(secret)

    def point_elsewhere(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location
            if tensor.name == "embedding.weight":
                tensor.name = "stolen"
        for node in model.graph.node:
            node.input[:] = ["stolen" if name == "embedding.weight" else name for name in node.input]

    try:
        runtime = load_parts(edited(point_elsewhere))
    except RowpackError as error:
        assert error.code == "engine_load_failed"
    else:
        assert np.abs(runtime.open_sequence().run_step(1)).max() < 1e3


def test_a_weight_that_the_section_lacks_is_refused(load_parts: LoadParts) -> None:
    def lose(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "offset":
                    entry.value = str(2**40)

    assert refused(lambda: load_parts(edited(lose))).code == "engine_load_failed"


def test_loading_writes_nothing_to_the_terminal(
    bundle: Path, load_parts: LoadParts, capfd: pytest.CaptureFixture[str]
) -> None:
    load(bundle).generate([1, 2, 3], 3)
    refused(lambda: load_parts(b"garbage"))
    assert capfd.readouterr() == ("", "")


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda m: m["states"].pop(), "manifest_not_runnable"),
        (lambda m: m["states"][0].update(shape=[4]), "manifest_not_runnable"),
        (lambda m: m["states"][0].update(dtype="float16"), "manifest_not_runnable"),
        (lambda m: m["states"][1].update(shape=["n", 8]), "manifest_malformed"),
        (lambda m: m["states"][0].update(shape=[0]), "manifest_malformed"),
        (lambda m: m["states"][1].update(shape=[128, 8]), "manifest_not_runnable"),
        (lambda m: m["states"][0].update(initial_value="0"), "manifest_malformed"),
        (lambda m: m["limits"].update(max_cache_length=128), "manifest_not_runnable"),
        (lambda m: m["limits"].update(prefill_rows=65), "manifest_not_runnable"),
        (lambda m: m["engines"].pop("prefill"), "manifest_not_runnable"),
        (lambda m: m["engines"].pop("decode"), "manifest_not_runnable"),
        (lambda m: m["engines"]["decode"]["inputs"][0].update(role="prompt"), "manifest_not_runnable"),
        (lambda m: m["engines"]["decode"]["inputs"][0].update(dtype="int64"), "manifest_not_runnable"),
        (lambda m: m["engines"]["decode"]["outputs"].pop(0), "manifest_not_runnable"),
        (lambda m: m["engines"]["prefill"]["inputs"].pop(), "manifest_not_runnable"),
        (lambda m: m["engines"]["prefill"].update(rows={"min": 2, "opt": 2, "max": 64}), "manifest_not_runnable"),
        (lambda m: m.update(decoder_engine_layout="single"), "manifest_not_runnable"),
        (lambda m: m.update(decoder_engine_layout="both"), "manifest_malformed"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(change: Change, code: str) -> None:
    manifest = json.loads(json.dumps(toy_manifest(HYBRID)))
    describe_model(manifest)
    change(manifest)
    assert refused(lambda: describe_model(manifest)).code == code


def test_headers_and_graphs_are_read_once(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    for module, name in ((mapped_section, "parse_header"), (onnx_wire, "_read_external")):
        original = getattr(module, name)

        def counted(*values: Any, name: str = name, original: Any = original, **named: Any) -> Any:
            read.append(name)
            return original(*values, **named)

        monkeypatch.setattr(module, name, counted)
    load(bundle, layout="split", threads=1)
    assert sorted(read) == ["_read_external", "_read_external", "parse_header"]
