"""How threads wait: the decision from numbers, where the numbers come from, and that the session gets the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy_models import HYBRID, write_toy_bundle

from rowpack_loaders import RowpackError, load
from rowpack_loaders.runtimes import thread_wait
from rowpack_loaders.runtimes.thread_wait import SLEEP_AFTER_US, SPIN_US, running_elsewhere, spin_duration_us


@pytest.mark.parametrize(
    ("wait", "threads", "cores", "others", "expected_us"),
    [
        ("auto", 2, 2, 0, SPIN_US),
        ("auto", 2, 2, 1, SLEEP_AFTER_US),
        ("auto", 1, 2, 1, SPIN_US),
        ("auto", 1, 2, 2, SLEEP_AFTER_US),
        ("auto", 3, 2, 0, SLEEP_AFTER_US),
        ("auto", 4, 8, 4, SPIN_US),
        ("auto", 4, 8, 5, SLEEP_AFTER_US),
        ("auto", 1, 8, None, SLEEP_AFTER_US),
        ("spin", 8, 2, 6, SPIN_US),
        ("spin", 2, 2, None, SPIN_US),
        ("sleep", 1, 8, 0, SLEEP_AFTER_US),
    ],
)
def test_threads_spin_where_each_has_a_core_for_itself(
    wait: Any, threads: int, cores: int, others: int | None, expected_us: int
) -> None:
    assert spin_duration_us(wait, threads, cores, others) == expected_us


def test_others_are_what_runs_beside_this_thread(tmp_path: Path) -> None:
    told = tmp_path / "loadavg"
    for text, others in (
        ("0.20 0.18 0.12 1/80 11206\n", 0),
        ("9.00 5.00 1.00 7/1080 11206\n", 6),
        ("0.00 0.00 0.00 0/80 1\n", 0),
        ("0.20 0.18 0.12\n", None),
        ("0.20 0.18 0.12 many/80 11206\n", None),
        ("", None),
    ):
        told.write_text(text)
        assert running_elsewhere(told) == others
    assert running_elsewhere(tmp_path / "nothing") is None


def test_a_task_of_a_moment_is_no_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for counts, others in (([9, 1, 1], 0), ([1, 9, 1], 0), ([3, 1, 3], 2)):
        samples = iter(counts)
        monkeypatch.setattr(thread_wait, "_running", lambda _, samples=samples: next(samples))
        assert running_elsewhere() == others


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_bundle(tmp_path_factory.mktemp("wait") / "toy.bundle", HYBRID)


@pytest.fixture
def given_us(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect what the sessions that are made are told."""
    from rowpack_loaders.runtimes import ort

    told: list[str] = []
    create = ort.onnxruntime.InferenceSession

    def noted(model: bytes, options: Any, **named: Any) -> Any:
        told.append(options.get_session_config_entry("session.intra_op.spin_duration_us"))
        return create(model, options, **named)

    monkeypatch.setattr(ort.onnxruntime, "InferenceSession", noted)
    return told


def test_a_choice_arrives_in_every_session(bundle: Path, given_us: list[str]) -> None:
    load(bundle, threads=1, thread_wait="spin", layout="split")
    load(bundle, threads=1, thread_wait="sleep", layout="split")
    assert given_us == ["1000", "1000", "20", "20"]


def test_without_a_choice_the_machine_decides(
    bundle: Path, given_us: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_wait, "usable_core_count", lambda: 2)
    for others in (0, 1, None):
        monkeypatch.setattr(thread_wait, "running_elsewhere", lambda others=others: others)
        load(bundle, threads=2, layout="single")
    assert given_us == ["1000", "20", "20"]


def test_an_unknown_word_and_a_runtime_without_the_choice_are_refused(bundle: Path) -> None:
    unknown: Any = "nap"
    with pytest.raises(RowpackError) as refused:
        load(bundle, thread_wait=unknown)
    assert refused.value.code == "thread_wait_unknown"
    with pytest.raises(RowpackError) as refused:
        load(bundle, runtime="openvino", thread_wait="spin")
    assert refused.value.code == "thread_wait_unsupported"
