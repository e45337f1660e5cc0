"""``rowpack verify-signature``: is a bundle the file that somebody vouched for."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rowpack.cli.arguments import add_json_option, add_progress_option
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE
from rowpack.cli.text_table import format_facts


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument(
        "--key",
        type=Path,
        required=True,
        action="append",
        metavar="PEM",
        help="public key of somebody you trust; given more than once, any of them will do",
    )
    parser.add_argument(
        "--signature", type=Path, metavar="FILE", help="the signature (default: BUNDLE.sigstore.json beside it)"
    )
    add_progress_option(parser)
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Verify the signature, then the bundle's bytes; refused when either is not what was signed."""
    from rowpack_loaders.signature import verify_signature

    with console.progress(arguments.progress) as progress, progress.stage("verify", str(arguments.bundle)) as stage:
        verified = verify_signature(
            arguments.bundle, arguments.key, signature=arguments.signature, progress=stage.reach
        )
    if console.as_json:
        console.json_result(verified.as_json())
    else:
        facts = [
            ("verified", str(verified.digests.path)),
            ("signed by", f"{verified.key} ({verified.key_fingerprint})"),
            ("signed as", verified.signed_name),
            ("SHA-256 of the file", verified.digests.sha256),
        ]
        console.result(format_facts(facts))
    return DONE


COMMAND = Command("verify-signature", "check a bundle against its detached signature", add_arguments, run)
