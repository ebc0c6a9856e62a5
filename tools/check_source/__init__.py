"""Enforces the rules for the source text that a compiler does not (see src/README.md)."""
