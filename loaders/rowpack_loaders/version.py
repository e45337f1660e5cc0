"""The version of the distribution; both packages carry the same number."""

__version__ = "0.1.0"
