"""Loading on OpenVINO: what is refused, what is not copied, and what the host program does not notice."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino_bundles import build_for

from rowpack_loaders import RowpackError, load, open_bundle
from rowpack_loaders.decoder import Decoder
from rowpack_loaders.host_memory import process_memory
from rowpack_loaders.model_description import DECODE, ModelDescription, describe_model
from rowpack_loaders.runtimes import load_runtime

pytestmark = pytest.mark.openvino


@pytest.fixture(scope="module")
def rwkv_bundle(rwkv_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A single bundle of the smaller graph."""
    return build_for(rwkv_checkpoint, tmp_path_factory.mktemp("loading"), "single")


def load_decode(path: Path, change: Any = None, engine: bytes | None = None) -> Decoder:
    """Load the decode engine with a changed description of the model, or other bytes."""
    bundle = open_bundle(path)
    model: ModelDescription = describe_model(bundle.manifest)
    section = model.engines[DECODE].section
    weights = bundle.container.mapped_section(model.weights_section or "")
    data = bundle.read_section(section) if engine is None else engine
    return Decoder(
        model,
        load_runtime("openvino", model if change is None else change(model), {DECODE: data}, weights, thread_count=1),
        bundle=bundle,
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"device": "cuda"}, "device_unsupported"),
        ({"device": "GPU"}, "device_unsupported"),
        ({"threads": 0}, "thread_count_invalid"),
        ({"threads": True}, "thread_count_invalid"),
        ({"layout": "split"}, "prefill_engine_missing"),
    ],
)
def test_arguments_that_cannot_be(rwkv_bundle: Path, arguments: dict[str, Any], code: str) -> None:
    with pytest.raises(RowpackError) as refused:
        load(rwkv_bundle, **arguments)
    assert refused.value.code == code


def test_an_engine_with_operators_of_another_runtime_is_refused(rwkv_bundle: Path) -> None:
    def change(model: ModelDescription) -> ModelDescription:
        needs = replace(model.needs[DECODE], requires=("com.microsoft.LinearAttention",))
        return replace(model, needs={DECODE: needs})

    with pytest.raises(RowpackError, match=r"com\.microsoft\.LinearAttention") as refused:
        load_decode(rwkv_bundle, change)
    assert refused.value.code == "runtime_unsuitable"


def test_an_engine_that_is_not_the_manifest_s_is_refused(rwkv_bundle: Path) -> None:
    def change(model: ModelDescription) -> ModelDescription:
        engine = model.engines[DECODE]
        wrong = tuple(
            replace(tensor, shape=(1, 7)) if tensor.name == "attn_state_0" else tensor for tensor in engine.inputs
        )
        return replace(model, engines={DECODE: replace(engine, inputs=wrong)})

    with pytest.raises(RowpackError, match="attn_state_0") as refused:
        load_decode(rwkv_bundle, change)
    assert refused.value.code == "engine_io_mismatch"


def test_an_operator_that_openvino_does_not_have_is_named(rwkv_bundle: Path) -> None:
    import onnx

    with open_bundle(rwkv_bundle) as bundle:
        model = onnx.load_from_string(bundle.read_section("engine.onnx"))
    model.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(RowpackError, match="NoSuchOperator") as refused:
        load_decode(rwkv_bundle, engine=model.SerializeToString())
    assert refused.value.code == "engine_load_failed"


def test_importing_it_reports_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from rowpack_loaders.runtimes.openvino.library import import_openvino; import_openvino();"
        "print([name for name in sys.modules if name.split('.')[0] == 'openvino_telemetry'])"
    )
    environment = {"HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == []


def test_a_run_leaves_the_program_s_denormals_alone(rwkv_bundle: Path) -> None:
    with load(rwkv_bundle, threads=2) as decoder:
        decoder.session().prefill([1, 2, 3])
        tiny = np.full(4, 1e-30, np.float32) * np.full(4, 1e-10, np.float32)
    assert (tiny > 0).all()


def test_denormals_are_flushed_in_every_thread_of_a_run() -> None:
    from rowpack_loaders.runtimes.denormals import FlushedDenormals, can_flush_denormals
    from rowpack_loaders.runtimes.openvino.library import import_openvino
    from rowpack_loaders.runtimes.openvino.runtime import COMPILE_PROPERTIES

    openvino = import_openvino()
    from openvino import opset13

    left, right = (opset13.parameter([2**18], np.float32) for _ in range(2))
    graph = openvino.Model([opset13.multiply(left, right)], [left, right])
    compiled = openvino.Core().compile_model(graph, "CPU", {**COMPILE_PROPERTIES, "INFERENCE_NUM_THREADS": 2})
    request = compiled.create_infer_request()
    factors = np.full(2**18, 1e-30, np.float32), np.full(2**18, 1e-10, np.float32)
    for index, factor in enumerate(factors):
        request.set_input_tensor(index, openvino.Tensor(factor, shared_memory=True))
    with FlushedDenormals():
        request.infer(share_outputs=True)
    denormal = np.count_nonzero(request.get_output_tensor(0).data)
    assert denormal == (0 if can_flush_denormals() else 2**18)


def test_a_left_operand_is_read_where_it_is_mapped(tmp_path: Path) -> None:
    """The matrices of the prefill form are neither copied when a graph is read nor packed when it is compiled."""
    from onnx import TensorProto, helper

    from rowpack_loaders.runtimes.openvino.graph_reading import read_graph
    from rowpack_loaders.runtimes.openvino.library import import_openvino
    from rowpack_loaders.runtimes.openvino.runtime import COMPILE_PROPERTIES
    from rowpack_loaders.weights import WeightView

    size = 4096  # 64 MiB
    values = np.memmap(tmp_path / "weights", dtype=np.float32, mode="w+", shape=(size, size))
    values[:] = 1.0
    values.flush()
    mapped = np.memmap(tmp_path / "weights", dtype=np.float32, mode="r", shape=(size, size))
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size, size])
    weight.data_location = TensorProto.EXTERNAL
    for key, text in (("location", "weights.safetensors"), ("offset", "0"), ("length", str(size * size * 4))):
        weight.external_data.add(key=key, value=text)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["w", "x"], ["y"])],
        "left",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size, "rows"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [size, "rows"])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    core = import_openvino().Core()

    def private_bytes() -> int:
        gc.collect()
        memory = process_memory()
        assert memory is not None
        return memory.anonymous_bytes

    before = private_bytes()
    read = read_graph(core, model.SerializeToString(), {"w": WeightView("F32", np.asarray(mapped))}, where="left")
    request = core.compile_model(read, "CPU", COMPILE_PROPERTIES).create_infer_request()
    request.set_tensor("x", import_openvino().Tensor(np.ones((size, 8), np.float32)))
    request.infer(share_outputs=True)
    assert (request.get_tensor("y").data == size).all()
    assert private_bytes() - before < mapped.nbytes // 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("attributes", "has_bias", "expected"),
    [
        ({}, False, []),
        ({"alpha": 1.0, "beta": 0.5}, False, []),
        ({"alpha": 2.0}, False, ["Add", "Multiply", "Multiply"]),
        ({}, True, ["Add", "Multiply", "Multiply"]),
    ],
)
def test_a_gemm_is_read_without_the_factor_that_changes_nothing(
    dtype: str, attributes: dict[str, float], has_bias: bool, expected: list[str]
) -> None:
    """Folding a factor of one into the weights takes the plugin a copy of them, and in bfloat16 very long."""
    from onnx import TensorProto, helper, numpy_helper

    from rowpack_loaders.runtimes.openvino.graph_reading import read_graph
    from rowpack_loaders.runtimes.openvino.library import import_openvino

    element = TensorProto.BFLOAT16 if dtype == "bfloat16" else TensorProto.FLOAT
    tensors = [
        helper.make_tensor_value_info(name, element, shape) for name, shape in {"x": [2, 3], "w": [5, 3]}.items()
    ]
    initializers = [numpy_helper.from_array(np.ones(5, np.float32), "bias")] if has_bias else []
    if has_bias and element != TensorProto.FLOAT:
        initializers = [helper.make_tensor("bias", element, [5], [1.0] * 5)]
    names = ["x", "w", "bias"] if has_bias else ["x", "w"]
    graph = helper.make_graph(
        [helper.make_node("Gemm", names, ["y"], transB=1, **attributes)],
        "gemm",
        tensors,
        [helper.make_tensor_value_info("y", element, [2, 5])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    core = import_openvino().Core()
    read = read_graph(core, model.SerializeToString(), {}, where="gemm")
    kinds = [node.get_type_name() for node in read.get_ordered_ops()]
    assert sorted(kind for kind in kinds if kind in ("Add", "Multiply")) == expected
    assert {name for output in read.outputs for name in output.get_names()} == {"y"}
    x, w = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(15, dtype=np.float32).reshape(5, 3)
    if dtype == "float32":
        (found,) = core.compile_model(read, "CPU")({"x": x, "w": w}).values()
        assert np.array_equal(found, attributes.get("alpha", 1.0) * (x @ w.T) + (1.0 if has_bias else 0.0))
