"""Who is ahead, which bars hold, and that an absent contender is named with its reason."""

from __future__ import annotations

from pathlib import Path

from contenders.catalogue import BF16_INSTRUCTIONS, CONTENDERS, PRECISIONS, QWEN, RWKV, reason_against, select
from measured_machine import processor_features
from speed_report import ClassReport, ContenderFigures, bars, bars_table, class_section, standings

from rowpack import BuildRequest

GB = 10**9


def figures(name: str, *, ours: bool, ms: float = 100.0, loop: bool = False, token: int = 5) -> ContenderFigures:
    """Return a contender all of whose figures follow from one time."""
    return ContenderFigures(
        name=name,
        is_ours=ours,
        is_token_loop=loop,
        prefill_ms={142: ms},
        decode_ms=ms / 10,
        import_s=0.1,
        load_s=ms / 1000,
        first_token_s=ms / 500,
        anonymous_bytes=int(ms * 1e6),
        mapped_bytes=int(ms * 1e6),
        peak_bytes=int(ms * 3e6),
        next_token=token,
        weight_bytes_a_token=GB if ours else None,
    )


def report(*rows: ContenderFigures, precision: str = "fp32", absent: dict[str, str] | None = None) -> ClassReport:
    """Return a class measured at one prompt length."""
    return ClassReport(precision, (142,), 142, list(rows), absent or {})


def holds(bars_of: list[ClassReport], promise: str, bytes_per_second: float = 100 * GB) -> bool | None:
    """Return whether the one bar whose promise contains a text holds."""
    (found,) = [bar for bar in bars("qwen3_5-0.8b", 142, bars_of, bytes_per_second) if promise in bar.promise]
    return found.holds


def test_standings_name_the_best_of_each_side() -> None:
    lines = standings(
        report(figures("slow", ours=True, ms=200), figures("fast", ours=True), figures("peer", ours=False))
    )
    assert "- prefill 142: behind, peer takes × 1.00 of fast." in lines
    ahead = standings(report(figures("fast", ours=True), figures("peer", ours=False, ms=150)))
    assert "- decode: ahead, peer takes × 1.50 of fast." in ahead


def test_contenders_that_answer_otherwise_are_told() -> None:
    lines = standings(report(figures("a", ours=True), figures("b", ours=False, token=6)))
    assert lines[-1] == "- Next token after the prompt of 142: 5: a; 6: b."
    assert standings(report(figures("a", ours=True), figures("b", ours=False)))[-1].startswith("- All name the same")


def test_the_absent_are_listed_with_their_reasons() -> None:
    section = class_section(report(absent={"llama.cpp f32": "it has no rwkv4"}), 10 * GB)
    assert "- Not measured: llama.cpp f32: it has no rwkv4." in section


def test_decode_is_compared_with_reading_the_weights_once() -> None:
    section = class_section(report(figures("a", ours=True)), 200 * GB)  # 1 GB at 200 GB/s: 5 ms; decode 10 ms
    assert "| 1,000 | 5.00 | 2.00 |" in section


def test_the_bar_on_decode_is_a_share_of_the_read_time() -> None:
    rows = [report(figures("a", ours=True))]  # 10 ms a token
    assert holds(rows, "reading the weights once", 100 * GB) is True
    assert holds(rows, "reading the weights once", 114 * GB) is True
    assert holds(rows, "reading the weights once", 116 * GB) is False


def test_the_bar_on_chunks_wants_twelve_times_the_token_loop() -> None:
    loop = figures("loop", ours=True, ms=1200, loop=True)
    assert holds([report(figures("a", ours=True), loop)], "the token loop") is True
    assert holds([report(figures("a", ours=True, ms=101), loop)], "the token loop") is False
    assert holds([report(figures("a", ours=True))], "the token loop") is None


def test_the_bar_on_load() -> None:
    assert holds([report(figures("a", ours=True, ms=200))], "load ≤") is True
    assert holds([report(figures("a", ours=True, ms=201))], "load ≤") is False


def test_one_figure_behind_breaks_the_bar_of_a_class() -> None:
    ours = figures("a", ours=True)
    assert holds([report(ours, figures("peer", ours=False, ms=101))], "fp32: ahead") is True
    assert holds([report(ours, figures("peer", ours=False, ms=100))], "fp32: ahead") is False
    assert holds([report(ours)], "fp32: ahead") is None
    assert holds([report(figures("peer", ours=False), precision="bf16")], "bf16: ahead") is None


def test_the_token_loop_never_counts_as_our_best() -> None:
    loop = figures("loop", ours=True, ms=1, loop=True)
    assert holds([report(loop, figures("a", ours=True), figures("peer", ours=False, ms=50))], "fp32: ahead") is False


def test_the_table_of_bars_has_a_row_for_each() -> None:
    table = bars_table("qwen3_5-0.8b", 142, [report(figures("a", ours=True))], 100 * GB)
    assert len(table.splitlines()) == 2 + 4


def test_a_family_or_an_instruction_that_is_missing_is_a_reason() -> None:
    by_name = {contender.name: contender for contender in CONTENDERS}
    assert reason_against(by_name["llama.cpp f32"], RWKV, []) == "it has no rwkv4"
    assert reason_against(by_name["llama.cpp f32"], QWEN, []) is None
    narrow = by_name["rowpack bf16, OpenVINO"]
    assert reason_against(narrow, QWEN, ["avx2"]) == "the processor has none of avx512_bf16, amx_bf16"
    assert reason_against(narrow, QWEN, ["amx_bf16"]) is None


def test_every_class_has_ours_and_peers_and_ours_come_first() -> None:
    for precision in PRECISIONS:
        chosen = select([precision], [])
        assert chosen[0].is_ours
        assert any(not contender.is_ours for contender in chosen)
    assert [contender.name for contender in select(["fp32"], ["llama"])] == ["llama.cpp f32"]


def test_a_processor_with_bfloat16_products_has_ours_in_its_class() -> None:
    flags = "flags : fpu avx2 avx512f avx512_bf16 amx_bf16 amx_tile avx512_vnni\n"
    features = processor_features(f"model name : A processor\n{flags}")
    assert [reason_against(contender, QWEN, features) for contender in select(["bf16"], [])] == [None, None, None]
    assert set(BF16_INSTRUCTIONS) <= set(features)


def test_the_first_row_of_fp32_is_the_plain_form_which_is_the_default(tmp_path: Path) -> None:
    first, *others = select(["fp32"], ["rowpack"])
    assert first.artifact.options == ()
    assert BuildRequest(tmp_path, tmp_path / "out.bundle").mixer_lowering == "plain"
    assert {"auto", "fused"} <= {option for contender in others for option in contender.artifact.options}


def test_artifacts_of_different_options_never_share_a_file() -> None:
    files = {contender.artifact.file_name for contender in CONTENDERS}
    assert len(files) == len({contender.artifact for contender in CONTENDERS})
