"""A bundle on this project's loader; ``choice`` is the way prompts run: ``chunked`` or ``token-loop``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from contenders import LoadRequest, package_versions

if TYPE_CHECKING:
    from rowpack_loaders.session import Session


class BundleSequence:
    """One session of a bundle."""

    def __init__(self, session: Session, mode: Literal["chunked", "token-loop"]) -> None:
        self._session = session
        self._mode = mode

    def prefill(self, token_ids: list[int]) -> int:
        """Start anew with a prompt."""
        return int(self._session.prefill(token_ids, mode=self._mode).argmax())

    def step(self, token_id: int) -> int:
        """Run one more row."""
        return int(self._session.advance(token_id).argmax())


def versions() -> dict[str, str]:
    """Return the versions of what runs."""
    from rowpack_loaders.version import __version__

    return {"rowpack": __version__, **package_versions("onnxruntime", "openvino", "numpy")}


def import_runtime() -> None:
    """Import the loader and numpy; the bundle names the inference runtime, which is imported while loading."""
    import rowpack_loaders

    _ = rowpack_loaders.load


def load(request: LoadRequest) -> BundleSequence:
    """Load a bundle and open a session."""
    from rowpack_loaders import load as load_bundle

    decoder = load_bundle(request.source, threads=request.threads)
    return BundleSequence(decoder.session(), cast('Literal["chunked", "token-loop"]', request.choice))
