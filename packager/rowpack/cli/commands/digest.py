"""``rowpack digest``: the digests of a bundle, computed from its bytes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from rowpack.cli.arguments import add_json_option, add_progress_option
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE
from rowpack.cli.text_table import format_facts

if TYPE_CHECKING:
    from rowpack_loaders.bundle_digests import BundleDigests


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--sections", action="store_true", help="print the digest of each section as well")
    add_progress_option(parser)
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Read the bundle once and print its digests; refused when the recorded ones differ."""
    from rowpack_loaders.bundle_digests import digest_bundle

    with console.progress(arguments.progress) as progress, progress.stage("digest", str(arguments.bundle)) as stage:
        digests = digest_bundle(arguments.bundle, progress=stage.reach)
    if console.as_json:
        console.json_result(digests.as_json())
    else:
        console.result(digests_text(digests, with_sections=arguments.sections))
    return DONE


def digests_text(digests: BundleDigests, *, with_sections: bool) -> str:
    """Return one line a digest."""
    facts = [
        ("content digest", digests.content_digest),
        ("file digest", digests.file_digest),
        ("SHA-256 of the file", digests.sha256),
    ]
    if with_sections:
        facts += list(digests.section_sha256.items())
    return format_facts(facts)


COMMAND = Command(
    "digest",
    "compute a bundle's digests from its bytes",
    add_arguments,
    run,
    notes="The content digest is the same for every build of the same model, the file digest names this very file.",
)
