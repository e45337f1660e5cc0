"""What the real parser and configuration make of our graphs and requests, without compiling anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from compiled_models import TRAINED_CHECKPOINTS, Preparation, build_plan
from onnx import TensorProto, helper
from real_library import ParsedNetwork

from rowpack.engines import find_backend
from rowpack.engines.tensorrt import plan_build
from rowpack.engines.tensorrt.builder_child import configure, import_first, map_file, parse
from rowpack.engines.tensorrt.flavour import TENSORRT_RTX
from rowpack_loaders.errors import RowpackError

pytestmark = pytest.mark.trt_rtx

Change = Callable[[onnx.GraphProto], None]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Preparation:
    """The trained model with states and caches, in half precision."""
    return Preparation(TRAINED_CHECKPOINTS["qwen3_5"], tmp_path_factory.mktemp("qwen"), "fp16", 64)


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_networks_are_strongly_typed(qwen: Preparation, role: str) -> None:
    network = ParsedNetwork(qwen, role)
    assert network.network.get_flag(network.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def test_the_configuration_is_what_the_record_says(qwen: Preparation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked from the library's own configuration object, after our request was applied to it."""
    requests: list[dict[str, Any]] = []

    def record(request: dict[str, Any], *others: object) -> None:
        requests.append(request)
        raise InterruptedError

    monkeypatch.setattr(plan_build, "BuilderProcess", record)
    backend: Any = find_backend("trt_rtx")
    with pytest.raises(InterruptedError):
        build_plan(backend, qwen, "prefill")
    parsed = ParsedNetwork(qwen, "prefill")
    trt = parsed.trt
    config, _ = configure(trt, parsed.builder, requests[0])
    assert not config.get_flag(trt.BuilderFlag.TF32)
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 2**30
    assert config.num_optimization_profiles == 1
    chosen = [config.get_compute_capability(index).name for index in range(config.num_compute_capabilities)]
    assert chosen == ["SM80", "SM86", "SM89", "SM120", "SM121"]
    assert parsed.builder.create_builder_config().get_flag(trt.BuilderFlag.TF32), "then turning it off says nothing"


def _output(graph: onnx.GraphProto, name: str) -> onnx.ValueInfoProto:
    return next(value for value in graph.output if value.name == name)


def _input(graph: onnx.GraphProto, name: str) -> onnx.ValueInfoProto:
    return next(value for value in graph.input if value.name == name)


def _pass_on(operator: str, output: str, new_name: str, element_type: int, **attributes: Any) -> Change:
    """Return a change that gives ``output`` out through one more operator."""

    def change(graph: onnx.GraphProto) -> None:
        graph.node.append(helper.make_node(operator, [output], [new_name], name="passed_on", **attributes))
        value = _output(graph, output)
        value.name = new_name
        value.type.tensor_type.elem_type = element_type

    return change


def _drop_output(name: str) -> Change:
    return lambda graph: graph.output.remove(_output(graph, name))


def _another_output(graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("Identity", ["logits"], ["again"], name="again"))
    graph.output.append(helper.make_tensor_value_info("again", TensorProto.FLOAT, None))


def _another_input(graph: onnx.GraphProto) -> None:
    graph.input.append(helper.make_tensor_value_info("extra", TensorProto.FLOAT, [1]))


def _wide_ids(graph: onnx.GraphProto) -> None:
    _input(graph, "token_id").type.tensor_type.elem_type = TensorProto.INT64


def _fixed_rows(graph: onnx.GraphProto) -> None:
    _input(graph, "token_id").type.tensor_type.shape.dim[0].dim_value = 32


def _free_cache(graph: onnx.GraphProto) -> None:
    cache = next(value for value in graph.input if value.name.startswith("cache_v"))
    cache.type.tensor_type.shape.dim[0].dim_param = "filled_rows"


def _half_state(graph: onnx.GraphProto) -> None:
    state = next(value for value in graph.input if value.name.startswith("ssm_state"))
    cast = helper.make_node("Cast", [state.name], ["widened"], name="widened", to=TensorProto.FLOAT)
    for node in graph.node:
        node.input[:] = ["widened" if name == state.name else name for name in node.input]
    graph.node.insert(0, cast)
    state.type.tensor_type.elem_type = TensorProto.FLOAT16


DEVIATIONS: dict[str, tuple[Change, str]] = {
    "an output of another name": (_pass_on("Identity", "logits", "scores", TensorProto.FLOAT), "logits|scores"),
    "half-precision logits": (
        _pass_on("Cast", "logits", "scores", TensorProto.FLOAT16, to=TensorProto.FLOAT16),
        "logits|scores",
    ),
    "an output is missing": (_drop_output("present_ssm_0"), "present_ssm_0"),
    "an output too many": (_another_output, "again"),
    "an input too many": (_another_input, "extra"),
    "ids of another width": (_wide_ids, "token_id"),
    "a state in half precision": (_half_state, r"ssm_state_\d+"),
    "a cache of a free length": (_free_cache, r"cache_v_\d+"),
    "a fixed row count": (_fixed_rows, "token_id|position_id|attention_mask|logits|present_.*"),
}


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_a_graph_with_one_deviation_is_not_compiled(qwen: Preparation, deviation: str) -> None:
    change, where = DEVIATIONS[deviation]
    order = qwen.orders["prefill"]
    model = onnx.ModelProto()
    model.CopyFrom(order.model)
    change(model.graph)
    backend: Any = find_backend("trt_rtx")
    with pytest.raises(RowpackError) as caught:
        build_plan(backend, qwen, order=replace(order, model=model))
    assert caught.value.code == "engine_contract"
    assert [problem.where for problem in caught.value.problems if not re.fullmatch(where, str(problem.where))] == []


def anonymous_bytes() -> int:
    """Return what this process holds of memory that no file backs."""
    status = Path("/proc/self/status").read_text("ascii")
    return 1024 * int(re.findall(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)[0])


def test_parsing_makes_no_copy_of_the_weights(tmp_path: Path) -> None:
    """Half a gigabyte of them is mapped from a file, of which the parser needs the address."""
    side, count = 4096, 16
    matrix_bytes = 2 * side * side
    path = tmp_path / "weights"
    with path.open("wb") as file:
        file.truncate(count * matrix_bytes)
    names = [f"w{index}" for index in range(count)]
    graph = helper.make_graph(
        [helper.make_node("MatMul", [f"x{index}", name], [f"x{index + 1}"]) for index, name in enumerate(names)],
        "chain",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT16, [1, side])],
        [helper.make_tensor_value_info(f"x{count}", TensorProto.FLOAT16, [1, side])],
    )
    for name in names:
        tensor = TensorProto(
            name=name, data_type=TensorProto.FLOAT16, dims=[side, side], data_location=TensorProto.EXTERNAL
        )
        tensor.external_data.add(key="location", value="weights")
        graph.initializer.append(tensor)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    trt = import_first(list(TENSORRT_RTX.modules))
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    before = anonymous_bytes()
    with path.open("rb") as file:
        weights = map_file(file.fileno())
    placed = [(name, index * matrix_bytes, matrix_bytes) for index, name in enumerate(names)]
    assert parse(parser, model.SerializeToString(), weights, placed)
    assert network.num_layers >= 2 * count
    assert anonymous_bytes() - before < matrix_bytes
