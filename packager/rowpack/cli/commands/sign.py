"""``rowpack sign``: vouch for a bundle with a private key."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rowpack.cli.arguments import add_json_option, add_progress_option, argument_errors
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE
from rowpack.cli.text_table import format_facts
from rowpack_loaders.errors import RowpackError


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--key", type=Path, required=True, metavar="PEM", help="private key: Ed25519 or ECDSA")
    parser.add_argument(
        "--key-password-env", metavar="NAME", help="environment variable that holds the password of an encrypted key"
    )
    parser.add_argument(
        "--signature", type=Path, metavar="FILE", help="where to write it (default: BUNDLE.sigstore.json beside it)"
    )
    add_progress_option(parser)
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Write the detached signature; the bundle itself is not touched."""
    from rowpack.signing import sign_bundle

    with argument_errors():
        password = read_password(arguments.key_password_env)
    with console.progress(arguments.progress) as progress, progress.stage("sign", str(arguments.bundle)) as stage:
        written = sign_bundle(
            arguments.bundle,
            arguments.key,
            password=password,
            signature=arguments.signature,
            progress=stage.reach,
        )
    if console.as_json:
        console.json_result(written.as_json())
    else:
        facts = [
            ("signature", str(written.path)),
            ("key", written.key_fingerprint),
            ("SHA-256 of the file", written.digests.sha256),
            ("content digest", written.digests.content_digest),
        ]
        console.result(format_facts(facts))
    return DONE


def read_password(variable: str | None) -> str | None:
    """Return the password in the environment variable, or None when none is named."""
    if variable is None:
        return None
    password = os.environ.get(variable)
    if password is None:
        raise RowpackError(
            "unusable_arguments",
            "the environment variable of the password is not set",
            where="--key-password-env",
            found=f"no variable {variable}",
            expected="the name of a variable that is set",
            remedy=f"Set {variable}, or leave --key-password-env out for a key without a password",
        )
    return password


COMMAND = Command(
    "sign",
    "write a detached signature beside a bundle",
    add_arguments,
    run,
    notes="Needs no network. The signature is an OpenSSF model signature: made with an ECDSA key,\n"
    "`model_signing verify key` checks it too.",
)
