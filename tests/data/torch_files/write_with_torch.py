"""Write the torch files of this folder; run it with torch (2.14.1 wrote them) to make them anew."""

from __future__ import annotations

from pathlib import Path

import torch

FOLDER = Path(__file__).parent


class SmallModel(torch.nn.Module):
    """Two layers, a buffer and a bare parameter: what a state dict's ``_metadata`` and order come from."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.norm = torch.nn.LayerNorm(3)
        self.register_buffer("steps", torch.tensor(7))
        self.mix = torch.nn.Parameter(torch.arange(3.0).reshape(1, 1, 3))


def main() -> None:
    """Write every file: two that must be read, and one for each way a torch file can be something else."""
    state = SmallModel().state_dict()
    state["linear.weight"] = torch.arange(6.0).reshape(2, 3)
    state["linear.bias"] = torch.tensor([0.5, -0.5])
    state["half"] = torch.arange(4.0).to(torch.float16)
    state["bfloat"] = torch.arange(12.0).reshape(4, 3).to(torch.bfloat16)
    state["transposed"] = state["bfloat"].t()
    state["tail"] = state["bfloat"][2:]
    state["expanded"] = torch.tensor([[1.5]]).expand(3, 2)
    state["double"] = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    state["empty"] = torch.zeros(0, 4)
    torch.save(state, FOLDER / "state_dict.bin")
    torch.save(state, FOLDER / "state_dict_protocol_4.bin", pickle_protocol=4)
    torch.save({"weight": torch.nn.Parameter(torch.ones(2))}, FOLDER / "parameters.bin")
    torch.save({"w": torch.ones(2)}, FOLDER / "legacy.bin", _use_new_zipfile_serialization=False)
    torch.save({"state_dict": {"w": torch.ones(2)}, "epoch": 3}, FOLDER / "training_state.bin")
    torch.save(torch.nn.Linear(3, 2), FOLDER / "whole_module.bin")


if __name__ == "__main__":
    main()
