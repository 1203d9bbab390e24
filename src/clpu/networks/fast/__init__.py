"""The fast path of `fit`: plain SGD on the MLP, folded into the way back through its layers.

For small networks an optimiser's separate pass over the weights costs as much as the arithmetic, and so does autograd's
bookkeeping. Here a layer updates itself as soon as its gradient is known: one GEMM computes
W ← (1 − lr·wd)·W − lr·xᵀg. Everything works without this folder, only slower.
"""

from clpu.networks.fast.learner import folded_learner

__all__ = ["folded_learner"]
