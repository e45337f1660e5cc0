"""Lay out what the speed benchmark measured: a section for each class of precision, and the bars it must clear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markdown_table import markdown_table, megabytes, with_ratio


@dataclass(frozen=True)
class ContenderFigures:
    """Medians of one contender; ``weight_bytes_a_token`` where it is known."""

    name: str
    is_ours: bool
    is_token_loop: bool
    prefill_ms: dict[int, float]
    decode_ms: float
    import_s: float
    load_s: float
    first_token_s: float
    anonymous_bytes: int
    mapped_bytes: int
    peak_bytes: int
    next_token: int
    weight_bytes_a_token: int | None = None
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClassReport:
    """One class of precision: ``absent`` are the contenders that do not run here, each with the reason."""

    precision: str
    prompt_tokens: tuple[int, ...]
    first_prompt_tokens: int
    rows: list[ContenderFigures]
    absent: dict[str, str]


@dataclass(frozen=True)
class Bar:
    """A promise: what it is, what was measured, whether it holds (None: not measured here)."""

    promise: str
    measured: str
    holds: bool | None


Figure = Callable[[ContenderFigures], float]


def compared_figures(report: ClassReport) -> dict[str, Figure]:
    """Return what contenders are compared by; less is better in all of them."""

    def prefill(tokens: int) -> Figure:
        return lambda row: row.prefill_ms[tokens]

    return {
        **{f"prefill {tokens}": prefill(tokens) for tokens in report.prompt_tokens},
        "decode": lambda row: row.decode_ms,
        "load": lambda row: row.load_s,
        "first token": lambda row: row.first_token_s,
        "anonymous memory": lambda row: row.anonymous_bytes,
        "resident memory": lambda row: row.anonymous_bytes + row.mapped_bytes,
        "peak memory": lambda row: row.peak_bytes,
    }


def class_section(report: ClassReport, bytes_per_second: float) -> str:
    """Return the tables of one class, who is ahead, and who is absent and why."""
    parts = [f"\n### {report.precision}\n"]
    if report.rows:
        parts += [times_table(report), "", memory_table(report, bytes_per_second), "", *standings(report)]
    parts += [f"- Not measured: {name}: {reason}." for name, reason in report.absent.items()]
    return "\n".join(parts)


def times_table(report: ClassReport) -> str:
    """Return the times, with ratios to the first row."""
    first = report.rows[0]
    columns = ["", *(f"prefill {tokens} ms" for tokens in report.prompt_tokens), "decode ms/token"]
    columns += ["import s", "load s", f"first token of {report.first_prompt_tokens} s"]
    rows = []
    for row in report.rows:
        cells = [row.name]
        for tokens in report.prompt_tokens:
            taken, reference = row.prefill_ms.get(tokens), first.prefill_ms.get(tokens)
            cells.append("" if taken is None else with_ratio(taken, reference or taken))
        cells += [with_ratio(row.decode_ms, first.decode_ms, 2), f"{row.import_s:.2f}", f"{row.load_s:.2f}"]
        rows.append([*cells, f"{row.first_token_s:.2f}"])
    return markdown_table(columns, rows)


def memory_table(report: ClassReport, bytes_per_second: float) -> str:
    """Return the memory, and decode against the time to read the weights once."""
    columns = ["", "anonymous MB", "mapped MB", "peak MB", "weights a token MB", "read once ms", "decode × read once"]
    rows = []
    for row in report.rows:
        cells = [row.name, megabytes(row.anonymous_bytes), megabytes(row.mapped_bytes), megabytes(row.peak_bytes)]
        if row.weight_bytes_a_token is None:
            cells += [""] * 3
        else:
            read_ms = 1e3 * row.weight_bytes_a_token / bytes_per_second
            cells += [megabytes(row.weight_bytes_a_token), f"{read_ms:.2f}", f"{row.decode_ms / read_ms:.2f}"]
        rows.append(cells)
    return markdown_table(columns, rows)


def standings(report: ClassReport) -> list[str]:
    """Return, figure by figure, the best of ours beside the best of the peers, and whether all agree on the answer."""
    ours = [row for row in report.rows if row.is_ours and not row.is_token_loop]
    peers = [row for row in report.rows if not row.is_ours]
    lines = []
    if ours and peers:
        for what, figure in compared_figures(report).items():
            best, rival = min(ours, key=figure), min(peers, key=figure)
            ratio = figure(rival) / figure(best)
            word = "ahead" if ratio > 1 else "behind"
            lines.append(f"- {what}: {word}, {rival.name} takes × {ratio:.2f} of {best.name}.")
    tokens: dict[int, list[str]] = {}
    for row in report.rows:
        tokens.setdefault(row.next_token, []).append(row.name)
    if len(tokens) > 1:
        camps = "; ".join(f"{token}: {', '.join(names)}" for token, names in tokens.items())
        lines.append(f"- Next token after the prompt of {report.first_prompt_tokens}: {camps}.")
    elif len(report.rows) > 1:
        lines.append(f"- All name the same next token after the prompt of {report.first_prompt_tokens}.")
    return lines


# -- bars --------------------------------------------------------------------------------------------------------

CHUNK_BARS = {"qwen3_5-0.8b": 12.0, "rwkv4-169m": 18.0}
"""How many times faster than the token loop chunks are to be, by shape, at the prompt of the first token."""
LOAD_BAR_S = {"qwen3_5-0.8b": 0.2}
READ_ONCE_BAR = 1.15


def bars(shape: str, first_tokens: int, reports: Sequence[ClassReport], bytes_per_second: float) -> list[Bar]:
    """Return every bar of a shape with what was measured."""
    rows = {row.name: row for report in reports if report.precision == "fp32" for row in report.rows}
    loops = [row for row in rows.values() if row.is_token_loop]
    ours = [row for row in rows.values() if row.is_ours and not row.is_token_loop]
    found = []
    if shape in CHUNK_BARS:
        promise = f"fp32 chunks ≥ {CHUNK_BARS[shape]:.0f} × the token loop at {first_tokens} tokens"
        ratios = [
            loop.prefill_ms[first_tokens] / row.prefill_ms[first_tokens]
            for loop in loops
            for row in ours
            if first_tokens in row.prefill_ms and first_tokens in loop.prefill_ms
        ]
        found.append(_bar(promise, max(ratios, default=None), lambda ratio: ratio >= CHUNK_BARS[shape], "× {:.1f}"))
    decodes = [
        row.decode_ms * bytes_per_second / row.weight_bytes_a_token / 1e3 for row in ours if row.weight_bytes_a_token
    ]
    promise = f"fp32 decode ≤ {READ_ONCE_BAR} × reading the weights once"
    found.append(_bar(promise, min(decodes, default=None), lambda ratio: ratio <= READ_ONCE_BAR, "× {:.2f}"))
    if shape in LOAD_BAR_S:
        load_s = min((row.load_s for row in ours), default=None)
        found.append(_bar(f"fp32 load ≤ {LOAD_BAR_S[shape]} s", load_s, lambda s: s <= LOAD_BAR_S[shape], "{:.2f} s"))
    found += [_ahead(report) for report in reports]
    return found


def _bar(promise: str, value: float | None, holds: Callable[[float], bool], text: str) -> Bar:
    return Bar(promise, "", None) if value is None else Bar(promise, text.format(value), holds(value))


def _ahead(report: ClassReport) -> Bar:
    """Return whether the best of ours beats the best peer of a class in everything that is compared."""
    ours = [row for row in report.rows if row.is_ours and not row.is_token_loop]
    peers = [row for row in report.rows if not row.is_ours]
    promise = f"{report.precision}: ahead of every peer in prefill, decode, load and memory"
    if not ours or not peers:
        return Bar(promise, "no contender of ours" if not ours else "no peer", None)
    behind = [
        f"{what} (× {min(map(figure, ours)) / min(map(figure, peers)):.2f})"
        for what, figure in compared_figures(report).items()
        if min(map(figure, ours)) >= min(map(figure, peers))
    ]
    return Bar(promise, f"behind in {', '.join(behind)}" if behind else "ahead in all", not behind)


def bars_table(shape: str, first_tokens: int, reports: Sequence[ClassReport], bytes_per_second: float) -> str:
    """Return the bars as a table."""
    words = {True: "yes", False: "no", None: "not measured"}
    rows = [
        [bar.promise, bar.measured, words[bar.holds]] for bar in bars(shape, first_tokens, reports, bytes_per_second)
    ]
    return markdown_table(["bar", "measured", "holds"], rows, text_columns=3)
