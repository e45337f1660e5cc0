"""Qwen3.5 dense text models: Gated DeltaNet and gated attention layers in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rowpack.families.config_reading import architecture_name
from rowpack.families.declaration import ModelDescription, RuntimeFacts
from rowpack.families.qwen3_5.config import (
    CONV_COLUMNS,
    FLAT_MODEL_TYPE,
    NESTED_MODEL_TYPE,
    Qwen35Config,
    read_config,
    text_config,
)
from rowpack.families.qwen3_5.tables import HEAD_NAME, state_table, weight_table
from rowpack.graph.dtypes import work_dtype
from rowpack_loaders.errors import RowpackError

IGNORED_PREFIXES = ("model.visual.", "visual.", "mtp.")
"""Vision tower and multi-token-prediction tensors of published repositories: a text build has no use for them."""

_LOOK_ALIKE_KEYS = ("num_experts", "num_local_experts", "output_gate_type")


class Qwen35Family:
    """The family ``qwen3_5``."""

    name = "qwen3_5"
    model_types: tuple[str, ...] = (NESTED_MODEL_TYPE, FLAT_MODEL_TYPE)

    def claims(self, config: Mapping[str, Any]) -> bool:
        """Claim by ``model_type`` alone; look-alikes under other types are not ours."""
        return config.get("model_type") in self.model_types

    def text_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the language model's part of the config."""
        return text_config(config)

    def describe(
        self,
        config: Mapping[str, Any],
        tensor_names: Sequence[str],
        precision: str,
        max_cache_length: int,
    ) -> ModelDescription:
        """Read the hyper-parameters and return the weight and state tables."""
        self._refuse_look_alikes(text_config(config))
        hyper = read_config(config, tensor_names)
        work = work_dtype(precision)
        ignored: tuple[str, ...] = IGNORED_PREFIXES
        if hyper.tied:
            ignored = (*ignored, "lm_head.weight")
        return ModelDescription(
            family=self.name,
            architecture=architecture_name(config, "Qwen3_5ForCausalLM"),
            hyper_parameters={**asdict(hyper), "layer_types": list(hyper.layer_types)},
            vocab_size=hyper.vocab_size,
            max_position_embeddings=hyper.max_position_embeddings,
            weights=weight_table(hyper, work),
            states=state_table(hyper, work, max_cache_length),
            ignored_prefixes=ignored,
            head_name=HEAD_NAME,
        )

    def emit(self, model: ModelDescription, precision: str, emitter: Any, weights: Mapping[str, Any]) -> None:
        """Emit the exported graph."""
        from rowpack.families.qwen3_5.graph import Qwen35Graph

        Qwen35Graph(self._hyper(model), work_dtype(precision), emitter, weights).emit()

    def runtime_json(self, model: ModelDescription, facts: RuntimeFacts) -> dict[str, object]:
        """Return the 20 keys that loaders of 2026 demand."""
        hyper = self._hyper(model)
        words = {"linear_attention": "deltanet", "full_attention": "attention"}
        kinds = [words[kind] for kind in hyper.layer_types]
        return {
            "vocab_size": hyper.vocab_size,
            "hidden_size": hyper.hidden_size,
            "num_hidden_layers": len(kinds),
            "num_attention_heads": hyper.num_attention_heads,
            "num_key_value_heads": hyper.num_key_value_heads,
            "head_dim": hyper.head_dim,
            "bos_token_id": facts.bos_token_id,
            "eos_token_id": facts.eos_token_id,
            "layer_types": kinds,
            "num_mamba_layers": kinds.count("deltanet"),
            "num_attention_layers": kinds.count("attention"),
            "d_inner": hyper.value_width,
            "mamba_d_state": hyper.linear_key_head_dim,
            "mamba_d_conv": CONV_COLUMNS,
            "mamba_nheads": hyper.linear_num_value_heads,
            "mamba_head_dim": hyper.linear_value_head_dim,
            "conv_dim": hyper.conv_dim,
            "precision": facts.precision,
            "max_cache_length": facts.max_cache_length,
            "decoder_engine_layout": facts.decoder_engine_layout,
        }

    @staticmethod
    def _hyper(model: ModelDescription) -> Qwen35Config:
        values = dict(model.hyper_parameters)
        return Qwen35Config(**{**values, "layer_types": tuple(values["layer_types"])})

    @staticmethod
    def _refuse_look_alikes(text: Mapping[str, Any]) -> None:
        """Refuse configs that differ from Qwen3.5 in what they compute, by the key that tells them apart."""
        for key in _LOOK_ALIKE_KEYS:
            if text.get(key):
                raise RowpackError(
                    "family_look_alike",
                    "the checkpoint looks like Qwen3.5 but computes something else",
                    where=f"config.json#/{key}",
                    found=f"{key} = {text[key]!r}",
                    expected="a dense Qwen3.5 text model, which has no such key",
                    remedy="Mixture-of-experts variants and later Qwen releases are not supported yet.",
                )
