"""Checks the rules for the source text that no compiler knows (see src/README.md)."""
