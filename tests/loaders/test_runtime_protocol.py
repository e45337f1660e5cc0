"""What a session asks of a runtime: token ids go in, the last row's logits come out, states stay where they are."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from toy_models import RECURRENT, toy_manifest

from rowpack_loaders.buffers import SequenceSnapshot
from rowpack_loaders.decoder import Decoder
from rowpack_loaders.model_description import ModelDescription, describe_model

ROWS = 128


class DeviceSequence:
    """A sequence whose state is a number on a device that nobody else can read: the sum of all ids seen."""

    def __init__(self, model: ModelDescription) -> None:
        self._model = model
        self.slid_rows = 0
        self.calls: list[tuple[str, int]] = []
        self.reset()

    @property
    def position(self) -> int:
        """Rows seen."""
        return self._position

    def reset(self) -> None:
        """Go back to the start."""
        self._handle = object()
        self._memory = {self._handle: 0}
        self._position = 0

    def run_step(self, token_id: int) -> npt.NDArray[np.float32]:
        """Run one row."""
        return self._run("step", [token_id])

    def run_chunk(self, token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Run a chunk."""
        return self._run("chunk", token_ids.tolist())

    def run_leading_chunk(self, token_ids: npt.NDArray[np.int32]) -> None:
        """Run a chunk whose logits nobody reads."""
        self._run("leading", token_ids.tolist())

    def capture(self) -> SequenceSnapshot:
        """Copy the state to the host."""
        states = {"sum": np.array([self._memory[self._handle]])}
        return SequenceSnapshot(self._model.model_id, self._model.content_digest, self._position, 0, states)

    def restore(self, snapshot: SequenceSnapshot) -> None:
        """Copy a state to the device, into another place than before."""
        self.reset()
        self._memory[self._handle] = int(snapshot.states["sum"][0])
        self._position = snapshot.position

    def _run(self, call: str, token_ids: list[int]) -> npt.NDArray[np.float32]:
        assert len(token_ids) <= ROWS
        self.calls.append((call, len(token_ids)))
        self._memory[self._handle] += sum(token_ids)
        self._position += len(token_ids)
        logits = np.zeros(self._model.vocab_size, np.float32)
        logits[self._memory[self._handle] % self._model.vocab_size] = 1
        return logits


def device_decoder() -> tuple[Decoder, list[DeviceSequence]]:
    """Return a decoder for calls of 128 rows over the device, and the sequences that are opened on it."""
    manifest: Any = toy_manifest(RECURRENT)
    manifest["limits"]["prefill_rows"] = manifest["engines"]["prefill"]["rows"]["max"] = ROWS
    model, opened = describe_model(manifest), []

    def open_sequence(*, slide: bool = False) -> DeviceSequence:
        opened.append(DeviceSequence(model))
        return opened[-1]

    runtime: Any = SimpleNamespace(
        backend="device", backend_version="1", thread_count=1, has_prefill_engine=True, open_sequence=open_sequence
    )
    return Decoder(model, runtime), opened


def test_a_session_runs_on_states_it_cannot_see(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, opened = device_decoder()

    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("a buffer of the host was made")

    monkeypatch.setattr(sys.modules["rowpack_loaders.buffers"].SequenceBuffers, "__init__", refuse)
    prompt = [(3 * index) % decoder.model.vocab_size for index in range(300)]
    session = decoder.session()
    logits = session.prefill(prompt)
    assert opened[0].calls == [("leading", 128), ("leading", 128), ("chunk", 44)]
    assert int(logits.argmax()) == sum(prompt) % decoder.model.vocab_size
    taken = session.snapshot()
    after = session.step(7)
    session.restore(taken)
    assert session.position == 300
    assert np.array_equal(session.step(7), after)
    # Continued on the grid of 128: the call that fills the third chunk, then full ones.
    session.extend(prompt)
    assert [rows for call, rows in opened[0].calls if call != "step"][3:] == [83, 128, 89]


def test_generation_runs_on_it_too() -> None:
    decoder, opened = device_decoder()
    tokens = decoder.generate([1, 2, 3], 4, stop_token_ids=[]).token_ids
    total, wanted = 6, []
    for _ in range(4):
        wanted.append(total % decoder.model.vocab_size)
        total += wanted[-1]
    assert list(tokens) == wanted
    assert opened[0].calls[0] == ("chunk", 3)
