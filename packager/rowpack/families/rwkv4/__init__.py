"""RWKV-4 models: time mixing by WKV, channel mixing, no attention and no cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rowpack.families.config_reading import architecture_name
from rowpack.families.declaration import ModelDescription, RuntimeFacts
from rowpack.families.rwkv4.config import MODEL_TYPE, Rwkv4Config, read_config
from rowpack.families.rwkv4.tables import HEAD_NAME, state_table, weight_table
from rowpack.graph.dtypes import work_dtype


class Rwkv4Family:
    """The family ``rwkv``."""

    name = "rwkv"
    model_types: tuple[str, ...] = (MODEL_TYPE,)

    def claims(self, config: Mapping[str, Any]) -> bool:
        """Claim by ``model_type``; RWKV-5 and later have other types."""
        return config.get("model_type") == MODEL_TYPE

    def text_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the config itself: RWKV-4 has no nested part."""
        return config

    def describe(
        self,
        config: Mapping[str, Any],
        tensor_names: Sequence[str],
        precision: str,
        max_cache_length: int,
    ) -> ModelDescription:
        """Read the hyper-parameters and return the weight and state tables; the cache length plays no part."""
        hyper = read_config(config, tensor_names)
        return ModelDescription(
            family=self.name,
            architecture=architecture_name(config, "RwkvForCausalLM"),
            hyper_parameters=asdict(hyper),
            vocab_size=hyper.vocab_size,
            max_position_embeddings=None,
            weights=weight_table(hyper, work_dtype(precision)),
            states=state_table(hyper),
            ignored_prefixes=("head.weight",) if hyper.tied else (),
            head_name=HEAD_NAME,
        )

    def emit(self, model: ModelDescription, precision: str, emitter: Any, weights: Mapping[str, Any]) -> None:
        """Emit the exported graph."""
        from rowpack.families.rwkv4.graph import Rwkv4Graph

        hyper = Rwkv4Config(**model.hyper_parameters)
        Rwkv4Graph(hyper, work_dtype(precision), emitter, weights).emit()

    def runtime_json(self, model: ModelDescription, facts: RuntimeFacts) -> dict[str, object]:
        """Return the 14 keys that loaders of 2026 demand."""
        hyper = Rwkv4Config(**model.hyper_parameters)
        return {
            "vocab_size": hyper.vocab_size,
            "hidden_size": hyper.hidden_size,
            "num_hidden_layers": hyper.num_hidden_layers,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "head_dim": hyper.hidden_size,
            "bos_token_id": facts.bos_token_id,
            "eos_token_id": facts.eos_token_id,
            "pad_token_id": facts.pad_token_id,
            "precision": facts.precision,
            "max_cache_length": facts.max_cache_length,
            "decoder_engine_layout": facts.decoder_engine_layout,
            "tensor_parallel_size": 1,
            "tensor_parallel_mode": "single",
        }
