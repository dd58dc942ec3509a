"""The gradients written for ONNX equal those of autograd."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from soap.errors import InputError
from soap.onnx_export.tracing import avg_pool2d_backward, block_means, convolution_backward


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


small = st.integers(1, 3)


@given(st.data())
@settings(max_examples=120)
def test_the_gradient_of_a_convolution(data):
    axes = data.draw(st.integers(1, 2))
    each = st.lists(small, min_size=axes, max_size=axes)
    kernel, stride, dilation, groups = data.draw(each), data.draw(each), data.draw(each), data.draw(st.integers(1, 2))
    padding = [data.draw(st.integers(0, 2)) for _ in kernel]
    transposed = data.draw(st.booleans())
    most = [max(both) - 1 if transposed else 0 for both in zip(stride, dilation, strict=True)]
    extra = [data.draw(st.integers(0, each)) for each in most]
    sizes = [data.draw(st.integers(1, 9)) for _ in kernel]
    for size, k, s, d, p, e in zip(sizes, kernel, stride, dilation, padding, extra, strict=True):
        out = (size - 1) * s - 2 * p + d * (k - 1) + e + 1 if transposed else size + 2 * p - d * (k - 1)
        assume(out >= 1)
    x, weight = normal(2, 2 * groups, *sizes), normal(2 * groups, 2, *kernel, seed=1)
    geometry = (stride, padding, dilation, transposed, extra, groups)
    gradient = normal(*torch.ops.aten.convolution(x, weight, None, *geometry).shape, seed=2)
    wanted, *_ = torch.ops.aten.convolution_backward(gradient, x, weight, None, *geometry, [True, False, False])
    got, *others = convolution_backward(gradient, x, weight, None, *geometry, [True, False, False])
    assert others == [None, None]
    torch.testing.assert_close(got, wanted)


def test_the_gradient_of_weights_is_not_decomposed():
    x, weight = normal(1, 1, 4, 4), normal(1, 1, 3, 3)
    geometry = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert convolution_backward(normal(1, 1, 2, 2), x, weight, None, *geometry, [True, True, False]) is NotImplemented


@given(
    sizes=st.tuples(st.integers(2, 9), st.integers(2, 9)),
    kernel=st.tuples(small, small),
    stride=st.one_of(st.just(()), st.tuples(small, small)),
    padded=st.booleans(),
    ceil_mode=st.booleans(),
    count_include_pad=st.booleans(),
    divisor=st.sampled_from([None, 5]),
)
@settings(max_examples=120)
def test_the_gradient_of_average_pooling(sizes, kernel, stride, padded, ceil_mode, count_include_pad, divisor):
    assume(all(k <= s for k, s in zip(kernel, sizes, strict=True)))
    padding = [k // 2 if padded else 0 for k in kernel]
    how = (list(kernel), list(stride), padding, ceil_mode, count_include_pad, divisor)
    x = normal(2, 3, *sizes).requires_grad_()
    pooled = F.avg_pool2d(x, *how)
    gradient = normal(*pooled.shape, seed=1)
    (wanted,) = torch.autograd.grad(pooled, x, gradient)
    torch.testing.assert_close(avg_pool2d_backward(gradient, x.detach(), *how), wanted)


@given(blocks=st.tuples(small, small), side=st.tuples(small, small), whole=st.booleans())
@settings(max_examples=40)
def test_block_means_equal_adaptive_average_pooling(blocks, side, whole):
    x = normal(2, 3, blocks[0] * side[0], blocks[1] * side[1])
    size = 1 if whole else (blocks[0], None)
    torch.testing.assert_close(block_means(x, size), F.adaptive_avg_pool2d(x, size))


def test_overlapping_blocks_are_refused():
    with pytest.raises(InputError, match="5 x 6 to 2 x 2 has overlapping blocks"):
        block_means(normal(1, 1, 5, 6), 2)
