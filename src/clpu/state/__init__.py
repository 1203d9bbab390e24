"""What an agent has learned: a tree of leaves."""

from clpu.state.leaf import Leaf, Spec
from clpu.state.tree import FORMAT, VERSION, People, State, Task

__all__ = ["FORMAT", "VERSION", "Leaf", "People", "Spec", "State", "Task"]
