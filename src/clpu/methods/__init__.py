"""The methods, one small file each; see docs/adding-a-method.md for one of your own."""

from clpu.methods.base import METHODS, Method, register
from clpu.methods.clpu_derpp import CLPUDERpp, CLPUDERppScratch
from clpu.methods.derpp import DERpp
from clpu.methods.er import ER
from clpu.methods.ewc import EWC
from clpu.methods.ind import Ind
from clpu.methods.lsf import LSF
from clpu.methods.lwf import LwF
from clpu.methods.seq import Seq

# The paper's order, in which tables list them.
_PAPER = [Ind, Seq, EWC, ER, LwF, LSF, DERpp, CLPUDERppScratch, CLPUDERpp]
METHODS.update({cls.name: METHODS.pop(cls.name) for cls in _PAPER})

__all__ = ["METHODS", "Method", "register"]
