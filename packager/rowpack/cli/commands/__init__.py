"""The commands in the order of the help text."""

from __future__ import annotations

from rowpack.cli.commands import (
    bench,
    build,
    check,
    demo,
    diff,
    digest,
    export_onnx,
    inspect,
    migrate,
    run,
    selftest,
    sign,
    synth,
    validate,
    verify_signature,
)
from rowpack.cli.commands import eval as evaluate

COMMANDS = (
    build.COMMAND,
    inspect.COMMAND,
    diff.COMMAND,
    validate.COMMAND,
    migrate.COMMAND,
    check.COMMAND,
    digest.COMMAND,
    sign.COMMAND,
    verify_signature.COMMAND,
    run.COMMAND,
    selftest.COMMAND,
    bench.COMMAND,
    evaluate.COMMAND,
    export_onnx.COMMAND,
    synth.COMMAND,
    demo.COMMAND,
)
