"""Continual learning that can forget privately."""
__version__ = "0.1.0"
