"""Every command on a real bundle: its streams, its JSON, its exit code."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rowpack.cli import main
from rowpack_loaders import selftest

Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Built:
    """A bundle that the command line built, and what it printed."""

    path: Path
    out: str
    err: str


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, qwen_checkpoint: Path) -> Built:
    """The split bundle of the demo checkpoint, built once for all these tests."""
    path = tmp_path_factory.mktemp("bundle") / "kjv.bundle"
    words = ["--decoder-engine-layout", "split", "--json", "--progress", "jsonl"]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        assert main(["build", str(qwen_checkpoint), "-o", str(path), *words]) == 0
    return Built(path, out.getvalue(), err.getvalue())


@pytest.fixture
def bundle(built: Built) -> Path:
    """The path of that bundle."""
    return built.path


def run_json(words: Sequence[str | Path], capsys: Capture, exit_code: int = 0) -> dict[str, Any]:
    """Run a command with ``--json`` and return the one object it prints."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == exit_code
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def refusal(words: Sequence[str | Path], capsys: Capture, exit_code: int = 1) -> dict[str, Any]:
    """Run a command that is refused; return its error."""
    error: dict[str, Any] = run_json(words, capsys, exit_code)["error"]
    return error


def test_build_prints_its_report_and_tells_its_stages_beside_it(built: Built) -> None:
    report = json.loads(built.out)
    assert report["path"] == str(built.path)
    assert report["file_bytes"] == built.path.stat().st_size
    assert report["content_digest"].startswith("sha256:")
    assert report["layout_decision"]["reason"] == "requested_split_override"
    events = [json.loads(line) for line in built.err.splitlines()]
    started = [event["stage"] for event in events if event["event"] == "start"]
    ended = [event["stage"] for event in events if event["event"] == "end"]
    assert sorted(started) == sorted(ended)
    assert [stage["name"] for stage in report["stages"]] == ended
    (weights,) = (event for event in events if event.get("stage") == "weights" and event["event"] == "end")
    assert weights["bytes_done"] == weights["bytes_total"] > 17_000_000


def test_build_says_in_words_what_it_did(qwen_checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "kjv.bundle"
    words = ["build", str(qwen_checkpoint), "-o", str(path), "--target-memory", "1GiB", "--no-verify"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert f"bundle          {path} (" in out
    assert "split: the weights fit; " in out
    assert "of weights (one copy for both engines)" in out
    assert "given by --target-memory" in out
    assert "Traceback" not in err


def test_inspect_describes_a_real_bundle(bundle: Path, capsys: Capture) -> None:
    assert main(["inspect", str(bundle)]) == 0
    text = capsys.readouterr().out
    for role in ("conv", "recurrent", "key", "value"):
        assert f"\n  {role} " in text
    assert "tokenizer     tokenizer.json" in text or "tokenizer    tokenizer.json" in text


def test_validate_tells_valid_from_invalid(bundle: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run_json(["validate", bundle], capsys)["valid"] is True
    damaged = tmp_path / "damaged.bundle"
    content = bytearray(bundle.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    report = run_json(["validate", damaged], capsys, 1)
    assert report["valid"] is False
    assert report["errors"][0]["code"]
    assert main(["validate", "--header-only", str(damaged)]) == 0, "its header is sound"
    capsys.readouterr()
    assert main(["validate", str(damaged), str(bundle)]) == 1
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{damaged}: INVALID")
    assert any(line.startswith(f"{bundle}: valid") for line in rest)
    assert main(["validate", str(tmp_path / "missing.bundle")]) == 1


def test_run_streams_text(bundle: Path, capsys: Capture) -> None:
    prompt = ["run", str(bundle), "--prompt", "In the beginning", "--max-new-tokens", "12"]
    text = run_json(prompt, capsys)["text"]
    assert main(prompt) == 0
    out, err = capsys.readouterr()
    assert out == text + "\n"
    assert "prompt tokens in" in err


def test_run_tells_in_json_how_it_ran(bundle: Path, capsys: Capture) -> None:
    ids = ",".join(["5", "6", "7"] * 30)
    words = ["run", bundle, "--prompt-ids", ids, "--max-new-tokens", "4"]
    chunked = run_json([*words, "--prefill", "chunked"], capsys)
    assert set(chunked) >= {"token_ids", "text", "finish_reason", "decoder_engine_layout", "prefill", "decode"}
    assert chunked["decoder_engine_layout"] == "split"
    assert chunked["prefill"]["mode"] == "chunked"
    assert chunked["prefill"]["tokens"] == 90
    assert chunked["prefill"]["chunks"] == [64, 26]
    looped = run_json([*words, "--prefill", "token-loop"], capsys)
    assert looped["prefill"]["mode"] == "token-loop"
    assert looped["token_ids"] == chunked["token_ids"]


def test_run_draws_the_same_with_the_same_seed(bundle: Path, capsys: Capture) -> None:
    words = ["run", bundle, "--prompt", "And", "--max-new-tokens", "16", "--temperature", "1.5", "--top-k", "50"]
    first = run_json([*words, "--seed", "3"], capsys)["token_ids"]
    assert run_json([*words, "--seed", "3"], capsys)["token_ids"] == first
    assert run_json([*words, "--seed", "4"], capsys)["token_ids"] != first


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (["--prompt", ""], "prompt_empty", 1),
        (["--prompt-ids", ""], "prompt_empty", 1),
        (["--prompt-ids", "5,2048"], "token_id_invalid", 1),
        (["--prompt-ids", "5", "--max-new-tokens", "100000"], "sequence_too_long", 1),
        (["--prompt", "a", "--temperature", "-1"], "sampling_parameter_invalid", 2),
        (["--prompt", "a", "--top-p", "nan"], "sampling_parameter_invalid", 2),
        (["--prompt", "a", "--top-k", "0"], "sampling_parameter_invalid", 2),
    ],
)
def test_run_refuses(bundle: Path, capsys: Capture, words: list[str], code: str, exit_code: int) -> None:
    assert refusal(["run", bundle, *words], capsys, exit_code)["code"] == code


def test_selftest_passes_on_this_machine(bundle: Path, capsys: Capture) -> None:
    report = run_json(["selftest", bundle], capsys)
    assert report["passed"] is True
    assert {result["mode"] for result in report["results"]} == {"chunked", "token-loop"}
    assert main(["selftest", str(bundle)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("passed: ")


def test_a_failed_selftest_is_refused(bundle: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = selftest.SelfTestResult(
        kind="verse",
        prompt_tokens=20,
        mode="chunked",
        tokens_equal=False,
        first_difference=3,
        relative_logit_error=float("nan"),
        near_tie=False,
        passed=False,
    )
    report = selftest.SelfTestReport("kjv.bundle", "ort", "1", "reference", 1e-4, 1, (wrong,))
    monkeypatch.setattr(selftest, "run_self_test", lambda decoder: report)
    assert main(["selftest", str(bundle)]) == 1
    out = capsys.readouterr().out
    assert "differ from new token 3" in out
    assert "nan" in out
    assert out.splitlines()[-1] == "FAILED: 0 of 1, 1 case too long for it"
    assert run_json(["selftest", bundle], capsys, 1)["results"][0]["relative_logit_error"] is None


def test_bench_measures_both_ways(bundle: Path, capsys: Capture) -> None:
    words = ["bench", bundle, "--prompt-tokens", "70", "--new-tokens", "2", "--repeats", "1", "--progress", "none"]
    report = run_json(words, capsys)
    assert [figure["mode"] for figure in report["prefill"]] == ["chunked", "token-loop"]
    assert report["prefill"][0]["chunks"] == [64, 6]
    assert report["decode"]["median_ms_per_token"] > 0
    assert main(list(map(str, words))) == 0
    assert "prefill of 70 tokens, chunked" in capsys.readouterr().out


def test_bench_says_how_threads_wait(bundle: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []

    def choose(wait: str, _: int) -> int:
        chosen.append(wait)
        return 20

    monkeypatch.setattr("rowpack_loaders.runtimes.ort.chosen_spin_us", choose)
    words = ["bench", bundle, "--prompt-tokens", "2", "--new-tokens", "1", "--repeats", "1", "--progress", "none"]
    for choice in ([], ["--thread-wait", "sleep"]):
        run_json([*words, *choice], capsys)
    assert chosen == ["auto", "sleep"]


def test_eval_counts_exact_continuations(bundle: Path, tmp_path: Path, capsys: Capture) -> None:
    ids = run_json(["run", bundle, "--prompt-ids", "5,6,7", "--max-new-tokens", "2"], capsys)["token_ids"]
    task = tmp_path / "task.jsonl"
    right = {"context_ids": [5, 6, 7], "target_ids": ids}
    wrong = {"context_ids": [5, 6, 7], "target_ids": [ids[0], (ids[1] + 1) % 2048]}
    task.write_text(json.dumps(right) + "\n" + json.dumps(wrong) + "\n")
    report = run_json(["eval", bundle, task, "--progress", "none"], capsys)
    assert (report["correct"], report["examples"], report["accuracy"]) == (1, 2, 0.5)
    task.write_text("{}\n")
    assert refusal(["eval", bundle, task, "--progress", "none"], capsys)["code"] == "task_line_invalid"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_build_without_progress_still_warns(
    qwen_checkpoint: Path, tmp_path: Path, capsys: Capture, as_json: bool
) -> None:
    words = ["build", str(qwen_checkpoint), "-o", str(tmp_path / "x.bundle"), "--no-verify"]
    words += ["--target-memory", "5MB", "--progress", "none", *(["--json"] if as_json else [])]
    assert main(words) == 0
    streams = capsys.readouterr()
    told = streams.out if as_json else streams.err
    assert "device_memory_tight" in told
    assert "this machine:" not in streams.err
    assert streams.err.count("\n") == (0 if as_json else 1)


def test_export_writes_graphs_that_share_weights(qwen_checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    words = ["export-onnx", qwen_checkpoint, "-o", tmp_path / "graphs", "--progress", "none"]
    files = run_json(words, capsys)["files"]
    names = {Path(file["path"]).name for file in files}
    assert "weights.safetensors" in names
    assert sum(name.endswith(".onnx") for name in names) == 3
    assert all(Path(file["path"]).stat().st_size == file["bytes"] for file in files)


def test_synth_writes_a_checkpoint_of_a_given_shape(qwen_checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "random"
    words = ["synth", qwen_checkpoint / "config.json", "-o", folder, "--progress", "none"]
    report = run_json(words, capsys)
    assert report["folder"] == str(folder)
    assert (folder / "model.safetensors").stat().st_size > report["tensor_bytes"]
    assert refusal(words, capsys)["code"] == "output_not_empty"
    assert refusal(["synth", "qwen9", "-o", tmp_path / "x"], capsys)["code"] == "unknown_shape"
    assert refusal(["synth", tmp_path / "no.json", "-o", tmp_path / "x"], capsys)["code"] == "bad_shape_config"


def test_synth_tells_its_size_before_it_writes(rwkv_checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    config = json.loads((rwkv_checkpoint / "config.json").read_text("utf-8"))
    shape = tmp_path / "shape.json"
    shape.write_text(json.dumps({**config, "num_hidden_layers": 1}), "utf-8")
    words = ["synth", str(shape), "-o", str(tmp_path / "x"), "--progress", "lines"]
    assert main([*words, "--with-mtp"]) == 1
    assert "[shape_option_unsupported]" in capsys.readouterr().err
    assert main(words) == 0
    told, written, *_ = capsys.readouterr().err.splitlines()
    assert told.endswith(f"of weights to write to {tmp_path / 'x'}")
    assert told.split(" of ")[0] in written


@pytest.mark.parametrize("rows", ["0", "513", "4097", "-1"])
def test_prefill_rows_out_of_range_are_unusable_arguments(
    qwen_checkpoint: Path, tmp_path: Path, capsys: Capture, rows: str
) -> None:
    words = ["build", qwen_checkpoint, "-o", tmp_path / "x.bundle", "--prefill-rows", rows]
    error = refusal(words, capsys, 2)
    assert "rows" in error["message"]
    assert error["expected"] == "1 to 512, for --backend ort"
    assert list(tmp_path.iterdir()) == []


def broken_checkpoint(kind: str, source: Path, folder: Path) -> Path:
    """Make a folder that is broken in one way."""
    if kind == "missing":
        return folder
    folder.mkdir()
    if kind == "empty":
        return folder
    shutil.copytree(source, folder, dirs_exist_ok=True)
    weights = folder / "model.safetensors"
    if kind == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif kind == "pointer":
        weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 8731432\n")
    elif kind == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    elif kind == "family":
        config = json.loads((folder / "config.json").read_text())
        config |= {"model_type": "mamba9", "architectures": ["Mamba9ForCausalLM"]}
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("kind", ["missing", "empty", "truncated", "pointer", "no tokenizer", "family"])
def test_a_broken_checkpoint_is_refused_and_leaves_nothing(
    qwen_checkpoint: Path, tmp_path: Path, capsys: Capture, kind: str
) -> None:
    checkpoint = broken_checkpoint(kind, qwen_checkpoint, tmp_path / "checkpoint")
    output = tmp_path / "out"
    output.mkdir()
    words = ["build", str(checkpoint), "-o", str(output / "x.bundle"), "--progress", "none"]
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "unexpected_error" not in err
    assert "Traceback" not in err
    if kind == "family":
        assert "mamba9" in err
        assert "qwen3_5" in err
        assert "rwkv" in err
    assert list(output.iterdir()) == []


def test_an_output_folder_that_is_missing_is_refused(qwen_checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    words = ["build", qwen_checkpoint, "-o", tmp_path / "none" / "x.bundle", "--progress", "none"]
    error = refusal(words, capsys)
    assert error["code"] != "unexpected_error"
    assert "none" in error["where"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_demo_generates_and_measures(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "demo.bundle"
    assert main(["demo", "-o", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "Mt5:3 Blessed are" in out
    assert "times as fast" in out
    assert str(path) in out
    assert path.exists()
    assert "Traceback" not in err
