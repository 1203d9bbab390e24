"""The methods, one small file each; see docs/adding-a-method.md to add yours.

They are imported in the order in which tables list them: the paper's nine first.
"""

# isort: off
from clpu.methods.base import METHODS, Method, find_method, inputs_of, label_of, register
from clpu.methods.networks import NetworkMethod
from clpu.methods import ind, seq, ewc, er, lwf, lsf, derpp, clpu_derpp, clpu_live, ridge  # noqa: F401
# isort: on

__all__ = ["METHODS", "Method", "NetworkMethod", "find_method", "inputs_of", "label_of", "register"]
