"""What commands that load a bundle share: which runtime runs its engines."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rowpack_loaders.decoder import Decoder

RUNTIMES = ("ort", "openvino")
"""Runtimes that take each other's engines; a compiled engine runs on its own library only."""


def add_runtime_option(parser: ArgumentParser) -> None:
    """Add ``--runtime NAME``."""
    parser.add_argument(
        "--runtime",
        choices=RUNTIMES,
        help="what runs the engines, where they are plain ONNX graphs (default: the backend the bundle was built for)",
    )


def load_bundle(arguments: Namespace, **options: Any) -> Decoder:
    """Load the bundle of a command on the runtime it was given; ``options`` go to ``rowpack_loaders.load``."""
    from rowpack_loaders import load

    return load(arguments.bundle, runtime=arguments.runtime, **options)
