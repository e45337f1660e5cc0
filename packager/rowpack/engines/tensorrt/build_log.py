"""What the library says while it builds: the memory it plans with, and every reason for a failure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_ERRORS = ("INTERNAL_ERROR", "ERROR")
_LONGEST_QUOTE = 400

# On a machine without a GPU the library follows some messages with one about the CUDA device it did not find.
_NOISE = re.compile(r"catchCudaError|Thread context has not been set|Error reading CUDA GPU properties")
_FIGURE = re.compile(r"^(Total Weights|Total Activation|Max Scratch) Memory: (\d+) bytes", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_][\w./-]*\w")
_NO_MEMORY = re.compile(
    r"out of memory|OutOfMemory|bad_alloc|MemoryError|Cannot allocate|std::length_error", re.IGNORECASE
)
_TURING = re.compile(r"Turing|SM75", re.IGNORECASE)
_OPERATOR = re.compile(r"Cannot compile operation '([^']+)'|Plugin not found|INVALID_NODE|UNSUPPORTED_NODE")


@dataclass(frozen=True)
class DeviceMemory:
    """What a plan takes on the device, in bytes, as the library counted it at build."""

    weight_bytes: int
    activation_bytes: int
    scratch_bytes: int


@dataclass
class BuildLog:
    """The messages of one build, in order; ``operators`` maps the graph's node names to their operators, by which a
    failure names its layer.
    """

    operators: Mapping[str, str] = field(default_factory=dict)
    messages: list[tuple[str, str]] = field(default_factory=list)

    def add(self, severity: str, text: str) -> None:
        """Keep one message."""
        self.messages.append((severity, text))

    @property
    def errors(self) -> list[str]:
        """Texts of logged errors, without what only says that there is no GPU here."""
        return [text for severity, text in self.messages if severity in _ERRORS and not _NOISE.search(text)]

    @property
    def memory(self) -> DeviceMemory | None:
        """The device memory that the library logged for the finished plan, or None when it did not."""
        figures = {name: int(count) for _, text in self.messages for name, count in _FIGURE.findall(text)}
        try:
            return DeviceMemory(figures["Total Weights"], figures["Total Activation"], figures["Max Scratch"])
        except KeyError:
            return None

    def layer_in(self, text: str) -> str | None:
        """Return the longest of our node names that ``text`` mentions; the library appends ``_U49`` and the like."""
        found = [name for word in _WORD.findall(text) for name in _beginnings(word) if name in self.operators]
        return max(found, key=len, default=None)


def _beginnings(word: str) -> Iterator[str]:
    """Yield ``a.b_c``, ``a.b``, ``a``."""
    while word:
        yield word
        word = word[: max(word.rfind("_"), word.rfind("."), 0)]


def is_out_of_memory(text: str) -> bool:
    """Tell whether a message says that memory ran out."""
    return bool(_NO_MEMORY.search(text))


def remedy_for(text: str) -> str:
    """Return what to try about a message of the library."""
    if _TURING.search(text):
        return "Leave 7.5 out of --compute-capability: Turing has no float32 products in this compiler."
    if _OPERATOR.search(text):
        return "This version of the library does not take the operator: try a newer one, or report it with this text."
    return "Try another --precision or a newer version of the library; if it fails again, report it with this text."


def quoted(text: str) -> str:
    """Return a message on one line, short enough to be read."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 1] + "…"
