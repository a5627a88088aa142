"""Stands for inductor's module of this name: the functions that the kernels here call.

`nox -s kernels_all` compiles the same kernels with inductor's own module, and fails if a binary
differs.
"""

import triton
import triton.language as tl

math = tl.math


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def any(input, dim):  # noqa: A001
    return tl.reduce(input, dim, either)


@triton.jit
def promote_to_tensor(x):
    return x + tl.zeros((1,), tl.int1)


@triton.jit
def is_floating(x):
    return promote_to_tensor(x).dtype.is_floating()


@triton.jit
def minimum(a, b):
    """The lesser of two numbers, NaN if the first one is."""
    takes_first = a < b
    if is_floating(a):
        takes_first |= a != a
    return tl.where(takes_first, a, b)


@triton.jit
def maximum(a, b):
    """The greater of two numbers, NaN if the first one is."""
    takes_first = a > b
    if is_floating(a):
        takes_first |= a != a
    return tl.where(takes_first, a, b)


@triton.jit
def max2(input, dim):
    return tl.reduce(input, dim, maximum)


# --- softmax in one pass: the largest logit so far, and the sum of exp(logit - largest) ------------


@triton.jit
def exp(x, fast: tl.constexpr):
    tl.static_assert(not fast)
    return math.exp(x)


@triton.jit
def online_softmax_combine(largest, total, logit, fast: tl.constexpr):
    """Take one more logit in."""
    new = maximum(largest, logit)
    scale = tl.where(new == float("-inf"), 1.0, exp(largest - new, fast))
    term = tl.where(new == float("-inf"), 1.0, exp(logit - new, fast))
    return new, total * scale + term


@triton.jit
def online_softmax_reduce(largest, total, dim, fast: tl.constexpr):
    """Join the parts along `dim`."""
    new = max2(largest, dim)
    of_all = new[:, None]
    difference = tl.where(of_all == float("-inf"), 0, largest - of_all)
    return new, tl.sum(total * exp(difference, fast), dim)


# --- mean and sum of squared differences in one pass (Welford 1962; Chan et al. 1979) ---------------


@triton.jit
def welford_reduce(value, mean, squares, weight, is_first):
    """Take one more value in."""
    if is_first:
        new_weight = tl.full(weight.shape, 1, weight.dtype)
        new_mean = value
        new_squares = tl.zeros_like(squares)
    else:
        difference = value - mean
        new_weight = weight + 1
        new_mean = mean + difference / new_weight
        new_squares = squares + difference * (value - new_mean)
    return new_mean, new_squares, new_weight


@triton.jit
def welford_combine(mean, squares, weight, mean_2, squares_2, weight_2):
    difference = mean_2 - mean
    new_weight = weight + weight_2
    share = tl.where(new_weight == 0.0, 0.0, weight_2 / new_weight)
    new_mean = mean + difference * share
    new_squares = squares + squares_2 + difference * difference * weight * share
    return new_mean, new_squares, new_weight


@triton.jit
def welford(mean, squares, weight, dim):
    """Join the parts along `dim`."""
    return tl.reduce((mean, squares, weight), dim, welford_combine)
