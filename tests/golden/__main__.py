"""Compute the figures again and write them."""

import numpy as np

from golden import NUMBERS, cases, compute

np.savez_compressed(NUMBERS, **{name: compute(name) for name in cases()})
