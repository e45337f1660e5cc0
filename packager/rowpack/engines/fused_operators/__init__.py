"""Fused operators of a runtime: which there are, whether they are right, and which a build uses."""
