"""Bases: frozen, public networks whose features methods build on; see docs/bases.md."""
