"""The learned state of an agent: a tree of leaves."""

from clpu.state.leaf import Leaf, Spec
from clpu.state.records import Records
from clpu.state.tree import FORMAT, VERSION, Held, Leaves, People, State, Task

__all__ = ["FORMAT", "VERSION", "Held", "Leaf", "Leaves", "People", "Records", "Spec", "State", "Task"]
