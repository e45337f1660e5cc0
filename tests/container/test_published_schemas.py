"""The published schemas: valid, complete in words, and true of their own examples."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from rowpack_loaders.schema_data import load_schema, schema_folder, schema_names
from rowpack_loaders.validation.schema_check import schema_problems


def test_the_contract_has_its_schemas() -> None:
    assert {"header", "manifest", "runtime.qwen3_5", "runtime.rwkv", "golden", "validate_report"} <= set(schema_names())
    with pytest.raises(KeyError):
        load_schema("../../etc/passwd")


@pytest.mark.parametrize("name", schema_names())
def test_a_schema_is_valid_identified_and_true_of_its_examples(name: str) -> None:
    schema: dict[str, Any] = load_schema(name)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:rowpack:schema:{name}"
    assert schema["examples"]
    for example in schema["examples"]:
        assert list(schema_problems(example, name, "example")) == []
    text = (schema_folder() / f"{name}.schema.json").read_text(encoding="utf-8")
    assert text == json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def objects(schema: Any, pointer: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every subschema that describes an object's members."""
    if isinstance(schema, dict):
        if "properties" in schema and schema.get("type"):
            yield pointer, schema
        for key, value in schema.items():
            if key != "examples":
                yield from objects(value, f"{pointer}/{key}")
    elif isinstance(schema, list):
        for index, value in enumerate(schema):
            yield from objects(value, f"{pointer}/{index}")


@pytest.mark.parametrize("name", schema_names())
def test_every_key_is_described(name: str) -> None:
    schema: dict[str, Any] = load_schema(name)
    definitions = schema.get("$defs", {})
    undescribed = []
    for pointer, part in objects(schema, ""):
        for key, value in part["properties"].items():
            target = definitions.get(value.get("$ref", "").removeprefix("#/$defs/"), {})
            if not (value.get("description") or target.get("description")):
                undescribed.append(f"{pointer}/{key}")
    assert undescribed == []


@pytest.mark.parametrize("name", schema_names())
def test_objects_are_closed(name: str) -> None:
    schema: dict[str, Any] = load_schema(name)
    # Which hyper-parameters a model has is its family's affair.
    is_open = [pointer for pointer, part in objects(schema, "") if part.get("additionalProperties") is not False]
    assert is_open == (["/properties/model/properties/hyper_parameters"] if name == "manifest" else [])


@pytest.mark.parametrize(("family", "count"), [("qwen3_5", 20), ("rwkv", 14)])
def test_runtime_json_has_the_number_of_keys_that_old_loaders_count(family: str, count: int) -> None:
    schema: dict[str, Any] = load_schema(f"runtime.{family}")
    assert len(schema["properties"]) == len(schema["required"]) == count
    (example,) = schema["examples"]
    assert len(example) == count
    for key in example:
        without = {name: value for name, value in example.items() if name != key}
        assert [problem.code for problem in schema_problems(without, f"runtime.{family}", "x")] == [
            "schema_key_missing"
        ]


def problems_of(value: object, name: str = "runtime.rwkv") -> list[tuple[str, str | None, str | None, str | None]]:
    """Return what is told about a value, without the words."""
    return [(p.code, p.where, p.found, p.expected) for p in schema_problems(value, name, "x")]


def test_problems_tell_place_found_and_expected() -> None:
    schema: dict[str, Any] = load_schema("runtime.rwkv")
    (example,) = schema["examples"]
    assert problems_of(example | {"vocab_size": "many"}) == [
        ("schema_value_invalid", "x#/vocab_size", '"many"', "integer")
    ]
    assert problems_of(example | {"vocab_size": 0}) == [("schema_value_invalid", "x#/vocab_size", "0", "minimum 1")]
    assert problems_of(example | {"precision": "fp8"}) == [
        ("schema_value_invalid", "x#/precision", '"fp8"', '["fp16", "fp32"]')
    ]
    assert problems_of(example | {"num_attention_heads": True}) == [
        ("schema_value_invalid", "x#/num_attention_heads", "true", "1")
    ]
    assert problems_of(example | {"a/b": 1})[0][:3] == ("schema_key_unknown", "x#/a~1b", "'a/b'")
    assert problems_of([]) == [("schema_value_invalid", "x#", "[]", "object")]


def test_problems_inside_an_object_or_null_are_told_where_they_are() -> None:
    schema: dict[str, Any] = load_schema("manifest")
    manifest = json.loads(json.dumps(schema["examples"][0]))
    manifest["tokens"]["bos"] = {"id": -1, "sources": ["config.json"]}
    manifest["weights"]["section"] = "Weights"
    manifest["states"][0]["shape"] = [6.0, 4]
    assert [problem[:2] for problem in sorted(problems_of(manifest, "manifest"))] == [
        ("schema_value_invalid", "x#/states/0/shape/0"),
        ("schema_value_invalid", "x#/tokens/bos/id"),
        ("schema_value_invalid", "x#/weights/section"),
    ]
