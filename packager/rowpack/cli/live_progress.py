"""The live progress view of a terminal; the only part of rowpack that imports rich."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rowpack.progress import Progress, Stage, stage_text
from rowpack_loaders.errors import Problem

BAR_WIDTH = 24


class LiveProgress(Progress):
    """Show running stages with a spinner and their elapsed time, a bar where bytes are counted.

    A finished stage becomes an ordinary line above the live part, so the terminal keeps what happened.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._running: dict[Stage, Spinner] = {}
        self._console = Console(file=stream)
        self._live = Live(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def note(self, text: str) -> None:
        """Print the note above the live part."""
        self._console.print(Text(text))

    def warning(self, problem: Problem) -> None:
        """Print the warning above the live part."""
        super().warning(problem)
        self._console.print(Text.assemble(("! ", "yellow"), str(problem)))

    def stage_started(self, stage: Stage) -> None:
        """Add the stage to the live part."""
        self._running[stage] = Spinner("dots")

    def stage_ended(self, stage: Stage, *, failed: bool) -> None:
        """Turn the stage into a line."""
        del self._running[stage]
        # Printing repeats the last live part below the line, so it must already be without the stage.
        self._live.refresh()
        mark = ("✗ ", "red") if failed else ("✓ ", "green")
        self._console.print(Text.assemble(mark, stage_text(stage)))

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()

    def _render(self) -> Group:
        # A copy, since the refresh thread may run while a stage starts or ends.
        return Group(*(self._row(stage, spinner) for stage, spinner in list(self._running.items())))

    def _row(self, stage: Stage, spinner: Spinner) -> Table:
        row = Table.grid(padding=(0, 1))
        cells: list[Spinner | Text | ProgressBar] = [spinner, Text(stage_text(stage))]
        if stage.total_bytes:
            cells.append(ProgressBar(stage.total_bytes, min(stage.done_bytes, stage.total_bytes), BAR_WIDTH))
        row.add_row(*cells)
        return row
