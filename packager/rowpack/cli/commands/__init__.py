"""The commands in the order of the help text."""

from __future__ import annotations

from rowpack.cli.commands import (
    bench,
    build,
    demo,
    export_onnx,
    inspect,
    run,
    selftest,
    synth,
    validate,
)
from rowpack.cli.commands import eval as evaluate

COMMANDS = (
    build.COMMAND,
    inspect.COMMAND,
    validate.COMMAND,
    run.COMMAND,
    selftest.COMMAND,
    bench.COMMAND,
    evaluate.COMMAND,
    export_onnx.COMMAND,
    synth.COMMAND,
    demo.COMMAND,
)
