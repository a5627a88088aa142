"""Kernels of a training step: pretraining, network 96-float32, gfx942.

Written by inductor of torch 2.7.1 for Triton 3.3.1; not edited by hand. To write it anew:
``nox -s kernels_all -- --write`` (tests/kernels/generate.py).
"""

import triton
import triton.language as tl
from kernel import kernel
from triton.language.extra import libdevice
import triton_helpers
from triton_helpers import math as tl_math


@kernel(
    {'in_ptr0': '*u8', 'out_ptr0': '*i64', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused__to_copy_add_arange_mul_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 176400
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x2 = xindex
    x0 = (xindex % 5)
    tmp0 = tl.load(in_ptr0 + (x2), xmask)
    tmp1 = tmp0.to(tl.int64)
    tmp2 = 7*x0
    tmp3 = tmp1 + tmp2
    tl.store(out_ptr0 + (x2), tmp3, xmask)


@kernel(
    {'in_ptr0': '*i64', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'out_ptr0': '*fp32', 'out_ptr3': '*fp32', 'out_ptr4': '*fp32', 'out_ptr5': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'out_ptr0', 'out_ptr3', 'out_ptr4', 'out_ptr5', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'R0_BLOCK': 128, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 4, 'R0_BLOCK': 128, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 64, 'R0_BLOCK': 64, 'num_warps': 8, 'num_stages': 1},
    {'XBLOCK': 8, 'R0_BLOCK': 128, 'num_warps': 8, 'num_stages': 1},
    {'XBLOCK': 64, 'R0_BLOCK': 4, 'num_warps': 8, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_add_embedding_native_layer_norm_native_layer_norm_backward_sum_1(in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, out_ptr0, out_ptr3, out_ptr4, out_ptr5, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 35280
    r0_numel = 96
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (5*x0), xmask, eviction_policy='evict_last')
    tmp7 = tl.load(in_ptr0 + (1 + 5*x0), xmask, eviction_policy='evict_last')
    tmp14 = tl.load(in_ptr0 + (2 + 5*x0), xmask, eviction_policy='evict_last')
    tmp21 = tl.load(in_ptr0 + (3 + 5*x0), xmask, eviction_policy='evict_last')
    tmp28 = tl.load(in_ptr0 + (4 + 5*x0), xmask, eviction_policy='evict_last')
    x2 = (xindex % 30)
    tmp38_mean = tl.zeros([XBLOCK, R0_BLOCK], tl.float32)
    tmp38_m2 = tl.zeros([XBLOCK, R0_BLOCK], tl.float32)
    tmp38_weight = tl.zeros([XBLOCK, R0_BLOCK], tl.float32)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_1 = r0_index
        tmp35 = tl.load(in_ptr2 + (r0_1 + 96*x2), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp1 = tl.full([XBLOCK, R0_BLOCK], 35, tl.int32)
        tmp2 = tmp0 + tmp1
        tmp3 = tmp0 < 0
        tmp4 = tl.where(tmp3, tmp2, tmp0)
        tl.device_assert(((0 <= tmp4) & (tmp4 < 35)) | ~(xmask), "index out of bounds: 0 <= tmp4 < 35")
        tmp6 = tl.load(in_ptr1 + (tmp4 + 35*r0_1), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp8 = tmp7 + tmp1
        tmp9 = tmp7 < 0
        tmp10 = tl.where(tmp9, tmp8, tmp7)
        tl.device_assert(((0 <= tmp10) & (tmp10 < 35)) | ~(xmask), "index out of bounds: 0 <= tmp10 < 35")
        tmp12 = tl.load(in_ptr1 + (tmp10 + 35*r0_1), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp13 = tmp6 + tmp12
        tmp15 = tmp14 + tmp1
        tmp16 = tmp14 < 0
        tmp17 = tl.where(tmp16, tmp15, tmp14)
        tl.device_assert(((0 <= tmp17) & (tmp17 < 35)) | ~(xmask), "index out of bounds: 0 <= tmp17 < 35")
        tmp19 = tl.load(in_ptr1 + (tmp17 + 35*r0_1), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp20 = tmp13 + tmp19
        tmp22 = tmp21 + tmp1
        tmp23 = tmp21 < 0
        tmp24 = tl.where(tmp23, tmp22, tmp21)
        tl.device_assert(((0 <= tmp24) & (tmp24 < 35)) | ~(xmask), "index out of bounds: 0 <= tmp24 < 35")
        tmp26 = tl.load(in_ptr1 + (tmp24 + 35*r0_1), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp27 = tmp20 + tmp26
        tmp29 = tmp28 + tmp1
        tmp30 = tmp28 < 0
        tmp31 = tl.where(tmp30, tmp29, tmp28)
        tl.device_assert(((0 <= tmp31) & (tmp31 < 35)) | ~(xmask), "index out of bounds: 0 <= tmp31 < 35")
        tmp33 = tl.load(in_ptr1 + (tmp31 + 35*r0_1), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp34 = tmp27 + tmp33
        tmp36 = tmp34 + tmp35
        tmp37 = tl.broadcast_to(tmp36, [XBLOCK, R0_BLOCK])
        tmp38_mean_next, tmp38_m2_next, tmp38_weight_next = triton_helpers.welford_reduce(
            tmp37, tmp38_mean, tmp38_m2, tmp38_weight, roffset == 0
        )
        tmp38_mean = tl.where(r0_mask & xmask, tmp38_mean_next, tmp38_mean)
        tmp38_m2 = tl.where(r0_mask & xmask, tmp38_m2_next, tmp38_m2)
        tmp38_weight = tl.where(r0_mask & xmask, tmp38_weight_next, tmp38_weight)
        tl.store(out_ptr0 + (r0_1 + 96*x0), tmp34, xmask & r0_mask)
    tmp41, tmp42, tmp43 = triton_helpers.welford(tmp38_mean, tmp38_m2, tmp38_weight, 1)
    tmp38 = tmp41[:, None]
    tmp39 = tmp42[:, None]
    tmp40 = tmp43[:, None]
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_1 = r0_index
        tmp44 = tl.load(out_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp45 = tl.load(in_ptr2 + (r0_1 + 96*x2), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp54 = tl.load(in_ptr3 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
        tmp56 = tl.load(in_ptr4 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
        tmp46 = tmp44 + tmp45
        tmp47 = tmp46 - tmp38
        tmp48 = 96.0
        tmp49 = (tmp39 / tmp48)
        tmp50 = 1e-05
        tmp51 = tmp49 + tmp50
        tmp52 = libdevice.rsqrt(tmp51)
        tmp53 = tmp47 * tmp52
        tmp55 = tmp53 * tmp54
        tmp57 = tmp55 + tmp56
        tl.store(out_ptr3 + (r0_1 + 96*x0), tmp53, xmask & r0_mask)
        tl.store(out_ptr4 + (r0_1 + 96*x0), tmp57, xmask & r0_mask)
    tmp58 = 96.0
    tmp59 = (tmp39 / tmp58)
    tmp60 = 1e-05
    tmp61 = tmp59 + tmp60
    tmp62 = libdevice.rsqrt(tmp61)
    tmp63 = 0.010416666666666666
    tmp64 = tmp62 * tmp63
    tl.store(out_ptr5 + (x0), tmp64, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_mul_2(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 3386880
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 30)
    x2 = ((xindex // 720) % 4)
    x3 = xindex // 2880
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 24*x2 + 288*x1 + 8640*x3), xmask)
    tmp1 = 0.45180100180492244
    tmp2 = tmp0 * tmp1
    tl.store(out_ptr0 + (x4), tmp2, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'ynumel'],
    {'XBLOCK': 32, 'YBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_mul_3(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 112896
    xnumel = 30
    yoffset = (tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[None, :]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    x2 = xindex
    y0 = (yindex % 96)
    y1 = yindex // 96
    y3 = yindex
    tmp0 = tl.load(in_ptr0 + (96 + y0 + 288*x2 + 8640*y1), ymask & xmask, eviction_policy='evict_last')
    tmp1 = 0.45180100180492244
    tmp2 = tmp0 * tmp1
    tl.store(out_ptr0 + (x2 + 30*y3), tmp2, ymask & xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr3': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr3', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 2, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__safe_softmax_4(in_ptr0, out_ptr3, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 141120
    r0_numel = 30
    R0_BLOCK: tl.constexpr = 32
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    x2 = (xindex % 120)
    x3 = xindex // 120
    tmp0 = tl.load(in_ptr0 + (r0_1 + 30*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.broadcast_to(tmp1, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, float("-inf"))
    tmp6 = triton_helpers.max2(tmp5, 1)[:, None]
    tmp7 = tmp1 - tmp6
    tmp8 = tl_math.exp(tmp7)
    tmp9 = tl.broadcast_to(tmp8, [XBLOCK, R0_BLOCK])
    tmp11 = tl.where(r0_mask & xmask, tmp9, 0)
    tmp12 = tl.sum(tmp11, 1)[:, None]
    tmp13 = float("-inf")
    tmp14 = tmp0 == tmp13
    tmp15 = tmp14 == 0
    tmp16 = tmp15.to(tl.int64)
    tmp17 = (tmp16 != 0)
    tmp18 = tl.broadcast_to(tmp17, [XBLOCK, R0_BLOCK])
    tmp20 = tl.where(r0_mask & xmask, tmp18, False)
    tmp21 = triton_helpers.any(tmp20, 1)[:, None]
    tmp22 = tmp21 == 0
    tmp23 = tmp0 - tmp6
    tmp24 = tl_math.exp(tmp23)
    tmp25 = (tmp24 / tmp12)
    tmp26 = 0.0
    tmp27 = tl.where(tmp22, tmp26, tmp25)
    tl.store(out_ptr3 + (r0_1 + 30*x2 + 3616*x3), tmp27, xmask & r0_mask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_bmm_5(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 4233600
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 900)
    x1 = xindex // 900
    x2 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 900*((x1 % 4)) + 3616*(x1 // 4)), xmask)
    tl.store(out_ptr0 + (x2), tmp0, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_6(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 3386880
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 30)
    x2 = ((xindex // 720) % 4)
    x3 = xindex // 2880
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (192 + x0 + 24*x2 + 288*x1 + 8640*x3), xmask)
    tl.store(out_ptr0 + (x4), tmp0, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_7(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 3386880
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 4)
    x2 = ((xindex // 96) % 30)
    x3 = xindex // 2880
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 24*x2 + 720*x1 + 2880*x3), xmask)
    tl.store(out_ptr0 + (x4), tmp0, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'out_ptr2': '*fp32', 'out_ptr3': '*fp32', 'out_ptr4': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'out_ptr2', 'out_ptr3', 'out_ptr4', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_add_native_layer_norm_native_layer_norm_backward_8(in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, out_ptr2, out_ptr3, out_ptr4, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 35280
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x3 = xindex
    x0 = (xindex % 30)
    tmp0 = tl.load(in_ptr0 + (r0_2 + 96*x3), r0_mask & xmask, other=0.0)
    tmp1 = tl.load(in_ptr1 + (r0_2 + 96*x0), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
    tmp3 = tl.load(in_ptr2 + (r0_2 + 96*x3), r0_mask & xmask, other=0.0)
    tmp4 = tl.load(in_ptr3 + (r0_2), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp30 = tl.load(in_ptr4 + (r0_2), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp32 = tl.load(in_ptr5 + (r0_2), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp2 = tmp0 + tmp1
    tmp5 = tmp3 + tmp4
    tmp6 = tmp2 + tmp5
    tmp7 = tl.broadcast_to(tmp6, [XBLOCK, R0_BLOCK])
    tmp9 = tl.where(r0_mask & xmask, tmp7, 0)
    tmp10 = tl.broadcast_to(tmp7, [XBLOCK, R0_BLOCK])
    tmp12 = tl.where(r0_mask & xmask, tmp10, 0)
    tmp13 = tl.sum(tmp12, 1)[:, None]
    tmp14 = tl.full([XBLOCK, 1], 96, tl.int32)
    tmp15 = tmp14.to(tl.float32)
    tmp16 = (tmp13 / tmp15)
    tmp17 = tmp7 - tmp16
    tmp18 = tmp17 * tmp17
    tmp19 = tl.broadcast_to(tmp18, [XBLOCK, R0_BLOCK])
    tmp21 = tl.where(r0_mask & xmask, tmp19, 0)
    tmp22 = tl.sum(tmp21, 1)[:, None]
    tmp23 = tmp6 - tmp16
    tmp24 = 96.0
    tmp25 = (tmp22 / tmp24)
    tmp26 = 1e-05
    tmp27 = tmp25 + tmp26
    tmp28 = libdevice.rsqrt(tmp27)
    tmp29 = tmp23 * tmp28
    tmp31 = tmp29 * tmp30
    tmp33 = tmp31 + tmp32
    tmp34 = 0.010416666666666666
    tmp35 = tmp28 * tmp34
    tl.store(out_ptr2 + (r0_2 + 96*x3), tmp29, r0_mask & xmask)
    tl.store(out_ptr3 + (r0_2 + 96*x3), tmp33, r0_mask & xmask)
    tl.store(out_ptr4 + (x3), tmp35, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_gelu_9(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 13547520
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tmp1 = 0.5
    tmp2 = tmp0 * tmp1
    tmp3 = tmp0 * tmp0
    tmp4 = tmp3 * tmp0
    tmp5 = 0.044715
    tmp6 = tmp4 * tmp5
    tmp7 = tmp0 + tmp6
    tmp8 = 0.7978845608028654
    tmp9 = tmp7 * tmp8
    tmp10 = libdevice.tanh(tmp9)
    tmp11 = 1.0
    tmp12 = tmp10 + tmp11
    tmp13 = tmp2 * tmp12
    tl.store(out_ptr0 + (x0), tmp13, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'in_ptr6': '*fp32', 'out_ptr2': '*fp32', 'out_ptr3': '*fp32', 'out_ptr4': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'in_ptr6', 'out_ptr2', 'out_ptr3', 'out_ptr4', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_add_native_layer_norm_native_layer_norm_backward_10(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, in_ptr6, out_ptr2, out_ptr3, out_ptr4, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 35280
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x3 = xindex
    x0 = (xindex % 30)
    tmp0 = tl.load(in_out_ptr0 + (r0_2 + 96*x3), r0_mask & xmask, other=0.0)
    tmp1 = tl.load(in_ptr0 + (r0_2 + 96*x0), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
    tmp3 = tl.load(in_ptr1 + (r0_2 + 96*x3), r0_mask & xmask, other=0.0)
    tmp4 = tl.load(in_ptr2 + (r0_2), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp7 = tl.load(in_ptr3 + (r0_2 + 96*x3), r0_mask & xmask, other=0.0)
    tmp8 = tl.load(in_ptr4 + (r0_2), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp34 = tl.load(in_ptr5 + (r0_2), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp36 = tl.load(in_ptr6 + (r0_2), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp2 = tmp0 + tmp1
    tmp5 = tmp3 + tmp4
    tmp6 = tmp2 + tmp5
    tmp9 = tmp7 + tmp8
    tmp10 = tmp6 + tmp9
    tmp11 = tl.broadcast_to(tmp10, [XBLOCK, R0_BLOCK])
    tmp13 = tl.where(r0_mask & xmask, tmp11, 0)
    tmp14 = tl.broadcast_to(tmp11, [XBLOCK, R0_BLOCK])
    tmp16 = tl.where(r0_mask & xmask, tmp14, 0)
    tmp17 = tl.sum(tmp16, 1)[:, None]
    tmp18 = tl.full([XBLOCK, 1], 96, tl.int32)
    tmp19 = tmp18.to(tl.float32)
    tmp20 = (tmp17 / tmp19)
    tmp21 = tmp11 - tmp20
    tmp22 = tmp21 * tmp21
    tmp23 = tl.broadcast_to(tmp22, [XBLOCK, R0_BLOCK])
    tmp25 = tl.where(r0_mask & xmask, tmp23, 0)
    tmp26 = tl.sum(tmp25, 1)[:, None]
    tmp27 = tmp10 - tmp20
    tmp28 = 96.0
    tmp29 = (tmp26 / tmp28)
    tmp30 = 1e-05
    tmp31 = tmp29 + tmp30
    tmp32 = libdevice.rsqrt(tmp31)
    tmp33 = tmp27 * tmp32
    tmp35 = tmp33 * tmp34
    tmp37 = tmp35 + tmp36
    tmp38 = 0.010416666666666666
    tmp39 = tmp32 * tmp38
    tl.store(in_out_ptr0 + (r0_2 + 96*x3), tmp10, r0_mask & xmask)
    tl.store(out_ptr2 + (r0_2 + 96*x3), tmp33, r0_mask & xmask)
    tl.store(out_ptr3 + (r0_2 + 96*x3), tmp37, r0_mask & xmask)
    tl.store(out_ptr4 + (x3), tmp39, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'out_ptr2': '*fp32', 'out_ptr3': '*fp32', 'out_ptr4': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'out_ptr2', 'out_ptr3', 'out_ptr4', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_add_native_layer_norm_native_layer_norm_backward_11(in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, out_ptr2, out_ptr3, out_ptr4, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 35280
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr1 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp2 = tl.load(in_ptr2 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp28 = tl.load(in_ptr3 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp30 = tl.load(in_ptr4 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp3 = tmp1 + tmp2
    tmp4 = tmp0 + tmp3
    tmp5 = tl.broadcast_to(tmp4, [XBLOCK, R0_BLOCK])
    tmp7 = tl.where(r0_mask & xmask, tmp5, 0)
    tmp8 = tl.broadcast_to(tmp5, [XBLOCK, R0_BLOCK])
    tmp10 = tl.where(r0_mask & xmask, tmp8, 0)
    tmp11 = tl.sum(tmp10, 1)[:, None]
    tmp12 = tl.full([XBLOCK, 1], 96, tl.int32)
    tmp13 = tmp12.to(tl.float32)
    tmp14 = (tmp11 / tmp13)
    tmp15 = tmp5 - tmp14
    tmp16 = tmp15 * tmp15
    tmp17 = tl.broadcast_to(tmp16, [XBLOCK, R0_BLOCK])
    tmp19 = tl.where(r0_mask & xmask, tmp17, 0)
    tmp20 = tl.sum(tmp19, 1)[:, None]
    tmp21 = tmp4 - tmp14
    tmp22 = 96.0
    tmp23 = (tmp20 / tmp22)
    tmp24 = 1e-05
    tmp25 = tmp23 + tmp24
    tmp26 = libdevice.rsqrt(tmp25)
    tmp27 = tmp21 * tmp26
    tmp29 = tmp27 * tmp28
    tmp31 = tmp29 + tmp30
    tmp32 = 0.010416666666666666
    tmp33 = tmp26 * tmp32
    tl.store(out_ptr2 + (r0_1 + 96*x0), tmp27, xmask & r0_mask)
    tl.store(out_ptr3 + (r0_1 + 96*x0), tmp31, xmask & r0_mask)
    tl.store(out_ptr4 + (x0), tmp33, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'out_ptr2': '*fp32', 'out_ptr3': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'out_ptr2', 'out_ptr3', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_add_native_layer_norm_native_layer_norm_backward_12(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, out_ptr2, out_ptr3, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 35280
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp2 = tl.load(in_ptr1 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp5 = tl.load(in_ptr2 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp6 = tl.load(in_ptr3 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp32 = tl.load(in_ptr4 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp34 = tl.load(in_ptr5 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp3 = tmp1 + tmp2
    tmp4 = tmp0 + tmp3
    tmp7 = tmp5 + tmp6
    tmp8 = tmp4 + tmp7
    tmp9 = tl.broadcast_to(tmp8, [XBLOCK, R0_BLOCK])
    tmp11 = tl.where(r0_mask & xmask, tmp9, 0)
    tmp12 = tl.broadcast_to(tmp9, [XBLOCK, R0_BLOCK])
    tmp14 = tl.where(r0_mask & xmask, tmp12, 0)
    tmp15 = tl.sum(tmp14, 1)[:, None]
    tmp16 = tl.full([XBLOCK, 1], 96, tl.int32)
    tmp17 = tmp16.to(tl.float32)
    tmp18 = (tmp15 / tmp17)
    tmp19 = tmp9 - tmp18
    tmp20 = tmp19 * tmp19
    tmp21 = tl.broadcast_to(tmp20, [XBLOCK, R0_BLOCK])
    tmp23 = tl.where(r0_mask & xmask, tmp21, 0)
    tmp24 = tl.sum(tmp23, 1)[:, None]
    tmp25 = tmp8 - tmp18
    tmp26 = 96.0
    tmp27 = (tmp24 / tmp26)
    tmp28 = 1e-05
    tmp29 = tmp27 + tmp28
    tmp30 = libdevice.rsqrt(tmp29)
    tmp31 = tmp25 * tmp30
    tmp33 = tmp31 * tmp32
    tmp35 = tmp33 + tmp34
    tmp36 = 0.010416666666666666
    tmp37 = tmp30 * tmp36
    tl.store(in_out_ptr0 + (r0_1 + 96*x0), tmp31, xmask & r0_mask)
    tl.store(out_ptr2 + (r0_1 + 96*x0), tmp35, xmask & r0_mask)
    tl.store(out_ptr3 + (x0), tmp37, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'out_ptr1': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'out_ptr1', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 2, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_13(in_ptr0, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 3584
    r0_numel = 30
    R0_BLOCK: tl.constexpr = 32
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x0 = (xindex % 4)
    x1 = xindex // 4
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 4*r0_2 + 120*x1), xmask & r0_mask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.broadcast_to(tmp1, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, float("-inf"))
    tmp6 = triton_helpers.max2(tmp5, 1)[:, None]
    tmp7 = tmp1 - tmp6
    tmp8 = tl_math.exp(tmp7)
    tmp9 = tl.broadcast_to(tmp8, [XBLOCK, R0_BLOCK])
    tmp11 = tl.where(r0_mask & xmask, tmp9, 0)
    tmp12 = tl.sum(tmp11, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp6, xmask)
    tl.store(out_ptr1 + (x3), tmp12, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 2, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_mul_sum_14(in_ptr0, in_ptr1, in_ptr2, in_ptr3, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 86016
    r0_numel = 30
    R0_BLOCK: tl.constexpr = 32
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_3 = r0_index
    x1 = ((xindex // 24) % 4)
    x2 = xindex // 96
    x4 = xindex // 24
    x5 = (xindex % 96)
    x6 = xindex
    tmp0 = tl.load(in_ptr0 + (x1 + 4*r0_3 + 120*x2), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp1 = tl.load(in_ptr1 + (x4), None, eviction_policy='evict_last')
    tmp4 = tl.load(in_ptr2 + (x4), None, eviction_policy='evict_last')
    tmp6 = tl.load(in_ptr3 + (x5 + 96*r0_3 + 2880*x2), r0_mask, other=0.0)
    tmp2 = tmp0 - tmp1
    tmp3 = tl_math.exp(tmp2)
    tmp5 = (tmp3 / tmp4)
    tmp7 = tmp5 * tmp6
    tmp8 = tl.broadcast_to(tmp7, [XBLOCK, R0_BLOCK])
    tmp10 = tl.where(r0_mask, tmp8, 0)
    tmp11 = tl.sum(tmp10, 1)[:, None]
    tl.store(out_ptr0 + (x6), tmp11, None)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_add_addmm_15(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, xnumel, XBLOCK : tl.constexpr):
    xnumel = 86016
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x2 = xindex
    x0 = (xindex % 96)
    tmp0 = tl.load(in_out_ptr0 + (x2), None)
    tmp1 = tl.load(in_ptr0 + (x0), None, eviction_policy='evict_last')
    tmp3 = tl.load(in_ptr1 + (x2), None)
    tmp4 = tl.load(in_ptr2 + (x0), None, eviction_policy='evict_last')
    tmp2 = tmp0 + tmp1
    tmp5 = tmp3 + tmp4
    tmp6 = tmp2 + tmp5
    tl.store(in_out_ptr0 + (x2), tmp6, None)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 256, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 2, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_stack_16(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 18816
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 3)
    x1 = xindex // 3
    x2 = xindex
    tmp0 = x0
    tmp1 = tl.full([1], 0, tl.int64)
    tmp2 = tmp0 >= tmp1
    tmp3 = tl.full([1], 1, tl.int64)
    tmp4 = tmp0 < tmp3
    tmp5 = tmp4.to(tl.int1)
    tmp6 = tl.load(in_ptr0 + (x1), xmask & tmp5, eviction_policy='evict_last', other=0.0)
    tmp7 = 0.00011618450098756825
    tmp8 = tmp6 * tmp7
    tmp9 = tl.full(tmp8.shape, 0.0, tmp8.dtype)
    tmp10 = tl.where(tmp5, tmp8, tmp9)
    tmp11 = tmp0 >= tmp3
    tmp12 = tl.full([1], 2, tl.int64)
    tmp13 = tmp0 < tmp12
    tmp14 = tmp11 & tmp13
    tmp15 = tmp14.to(tl.int1)
    tmp16 = tl.load(in_ptr0 + (x1), xmask & tmp15, eviction_policy='evict_last', other=0.0)
    tmp17 = 0.00011618450098756825
    tmp18 = tmp16 * tmp17
    tmp19 = libdevice.sqrt(tmp18)
    tmp20 = tl.full(tmp19.shape, 0.0, tmp19.dtype)
    tmp21 = tl.where(tmp15, tmp19, tmp20)
    tmp22 = tmp0 >= tmp12
    tmp23 = tl.full([1], 3, tl.int64)
    tmp24 = tmp0 < tmp23
    tmp25 = tmp22.to(tl.int1)
    tmp26 = tl.load(in_ptr0 + (x1), xmask & tmp25, eviction_policy='evict_last', other=0.0)
    tmp27 = libdevice.log1p(tmp26)
    tmp28 = 0.11036982209905766
    tmp29 = tmp27 * tmp28
    tmp30 = tl.full(tmp29.shape, 0.0, tmp29.dtype)
    tmp31 = tl.where(tmp25, tmp29, tmp30)
    tmp32 = tl.where(tmp14, tmp21, tmp31)
    tmp33 = tl.where(tmp4, tmp10, tmp32)
    tl.store(out_ptr0 + (x2), tmp33, xmask)


@kernel(
    {'in_ptr0': '*i1', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_gelu_where_17(in_ptr0, in_ptr1, in_ptr2, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 602112
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x1 = xindex // 96
    x0 = (xindex % 96)
    x2 = xindex
    tmp0 = tl.load(in_ptr0 + (x1), None, eviction_policy='evict_last')
    tmp1 = tl.load(in_ptr1 + (x0), None, eviction_policy='evict_last')
    tmp2 = tl.load(in_ptr2 + (x2), None)
    tmp3 = 0.5
    tmp4 = tmp2 * tmp3
    tmp5 = 0.7071067811865476
    tmp6 = tmp2 * tmp5
    tmp7 = libdevice.erf(tmp6)
    tmp8 = 1.0
    tmp9 = tmp7 + tmp8
    tmp10 = tmp4 * tmp9
    tmp11 = tl.where(tmp0, tmp1, tmp10)
    tl.store(out_ptr0 + (x2), tmp11, None)


@kernel(
    {'in_ptr0': '*i64', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'out_ptr2': '*fp32', 'out_ptr3': '*fp32', 'out_ptr4': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'out_ptr2', 'out_ptr3', 'out_ptr4', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_add_addmm_embedding_native_layer_norm_native_layer_norm_backward_18(in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, out_ptr2, out_ptr3, out_ptr4, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6272
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    x0 = xindex
    r0_1 = r0_index
    tmp0 = tl.load(in_ptr0 + (x0), xmask, eviction_policy='evict_last')
    tmp7 = tl.load(in_ptr2 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp8 = tl.load(in_ptr3 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp34 = tl.load(in_ptr4 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp36 = tl.load(in_ptr5 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp1 = tl.full([XBLOCK, R0_BLOCK], 896, tl.int32)
    tmp2 = tmp0 + tmp1
    tmp3 = tmp0 < 0
    tmp4 = tl.where(tmp3, tmp2, tmp0)
    tl.device_assert(((0 <= tmp4) & (tmp4 < 896)) | ~(xmask), "index out of bounds: 0 <= tmp4 < 896")
    tmp6 = tl.load(in_ptr1 + (r0_1 + 96*tmp4), xmask & r0_mask, other=0.0)
    tmp9 = tmp7 + tmp8
    tmp10 = tmp6 + tmp9
    tmp11 = tl.broadcast_to(tmp10, [XBLOCK, R0_BLOCK])
    tmp13 = tl.where(r0_mask & xmask, tmp11, 0)
    tmp14 = tl.broadcast_to(tmp11, [XBLOCK, R0_BLOCK])
    tmp16 = tl.where(r0_mask & xmask, tmp14, 0)
    tmp17 = tl.sum(tmp16, 1)[:, None]
    tmp18 = tl.full([XBLOCK, 1], 96, tl.int32)
    tmp19 = tmp18.to(tl.float32)
    tmp20 = (tmp17 / tmp19)
    tmp21 = tmp11 - tmp20
    tmp22 = tmp21 * tmp21
    tmp23 = tl.broadcast_to(tmp22, [XBLOCK, R0_BLOCK])
    tmp25 = tl.where(r0_mask & xmask, tmp23, 0)
    tmp26 = tl.sum(tmp25, 1)[:, None]
    tmp27 = tmp10 - tmp20
    tmp28 = 96.0
    tmp29 = (tmp26 / tmp28)
    tmp30 = 1e-05
    tmp31 = tmp29 + tmp30
    tmp32 = libdevice.rsqrt(tmp31)
    tmp33 = tmp27 * tmp32
    tmp35 = tmp33 * tmp34
    tmp37 = tmp35 + tmp36
    tmp38 = 0.010416666666666666
    tmp39 = tmp32 * tmp38
    tl.store(out_ptr2 + (r0_1 + 96*x0), tmp33, xmask & r0_mask)
    tl.store(out_ptr3 + (r0_1 + 96*x0), tmp37, xmask & r0_mask)
    tl.store(out_ptr4 + (x0), tmp39, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_mul_19(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 122880
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 80)
    x2 = ((xindex // 1920) % 4)
    x3 = xindex // 7680
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (921600 + x0 + 24*x2 + 288*x1 + 23040*x3), None)
    tmp1 = 0.45180100180492244
    tmp2 = tmp0 * tmp1
    tl.store(out_ptr0 + (x4), tmp2, None)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'ynumel', 'xnumel'],
    {'XBLOCK': 32, 'YBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_mul_20(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 1536
    xnumel = 80
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[None, :]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    x2 = xindex
    y0 = (yindex % 96)
    y1 = yindex // 96
    y3 = yindex
    tmp0 = tl.load(in_ptr0 + (921696 + y0 + 288*x2 + 23040*y1), ymask & xmask, eviction_policy='evict_last')
    tmp1 = 0.45180100180492244
    tmp2 = tmp0 * tmp1
    tl.store(out_ptr0 + (x2 + 80*y3), tmp2, ymask & xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__safe_softmax_add_scalar_tensor_where_21(in_out_ptr0, in_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 5120
    r0_numel = 80
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x3 = xindex
    x1 = xindex // 320
    tmp0 = tl.load(in_out_ptr0 + (r0_2 + 80*x3), r0_mask & xmask, other=0.0)
    tmp1 = tl.load(in_ptr0 + (3200 + r0_2 + 80*x1), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
    tmp2 = 0.0
    tmp3 = tmp1 > tmp2
    tmp4 = float("-inf")
    tmp5 = tl.where(tmp3, tmp2, tmp4)
    tmp6 = tmp0 + tmp5
    tmp7 = tl.broadcast_to(tmp6, [XBLOCK, R0_BLOCK])
    tmp9 = tl.broadcast_to(tmp7, [XBLOCK, R0_BLOCK])
    tmp11 = tl.where(r0_mask & xmask, tmp9, float("-inf"))
    tmp12 = triton_helpers.max2(tmp11, 1)[:, None]
    tmp13 = tmp7 - tmp12
    tmp14 = tl_math.exp(tmp13)
    tmp15 = tl.broadcast_to(tmp14, [XBLOCK, R0_BLOCK])
    tmp17 = tl.where(r0_mask & xmask, tmp15, 0)
    tmp18 = tl.sum(tmp17, 1)[:, None]
    tmp19 = tmp6 == tmp4
    tmp20 = tmp19 == 0
    tmp21 = tmp20.to(tl.int64)
    tmp22 = (tmp21 != 0)
    tmp23 = tl.broadcast_to(tmp22, [XBLOCK, R0_BLOCK])
    tmp25 = tl.where(r0_mask & xmask, tmp23, False)
    tmp26 = triton_helpers.any(tmp25, 1)[:, None]
    tmp27 = tmp26 == 0
    tmp28 = tmp6 - tmp12
    tmp29 = tl_math.exp(tmp28)
    tmp30 = (tmp29 / tmp18)
    tmp31 = tl.where(tmp27, tmp2, tmp30)
    tl.store(in_out_ptr0 + (r0_2 + 80*x3), tmp31, r0_mask & xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_22(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 122880
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 80)
    x2 = ((xindex // 1920) % 4)
    x3 = xindex // 7680
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (921792 + x0 + 24*x2 + 288*x1 + 23040*x3), None)
    tl.store(out_ptr0 + (x4), tmp0, None)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_mul_23(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 172032
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 56)
    x2 = ((xindex // 1344) % 4)
    x3 = xindex // 5376
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (1290240 + x0 + 24*x2 + 288*x1 + 16128*x3), None)
    tmp1 = 0.45180100180492244
    tmp2 = tmp0 * tmp1
    tl.store(out_ptr0 + (x4), tmp2, None)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'ynumel'],
    {'XBLOCK': 32, 'YBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_mul_24(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 3072
    xnumel = 56
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[None, :]
    ymask = tl.full([XBLOCK, YBLOCK], True, tl.int1)
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    x2 = xindex
    y0 = (yindex % 96)
    y1 = yindex // 96
    y3 = yindex
    tmp0 = tl.load(in_ptr0 + (1290336 + y0 + 288*x2 + 16128*y1), xmask, eviction_policy='evict_last')
    tmp1 = 0.45180100180492244
    tmp2 = tmp0 * tmp1
    tl.store(out_ptr0 + (x2 + 56*y3), tmp2, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__safe_softmax_add_scalar_tensor_where_25(in_out_ptr0, in_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 7168
    r0_numel = 56
    R0_BLOCK: tl.constexpr = 64
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x3 = xindex
    x1 = xindex // 224
    tmp0 = tl.load(in_out_ptr0 + (r0_2 + 56*x3), r0_mask & xmask, other=0.0)
    tmp1 = tl.load(in_ptr0 + (4480 + r0_2 + 56*x1), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
    tmp2 = 0.0
    tmp3 = tmp1 > tmp2
    tmp4 = float("-inf")
    tmp5 = tl.where(tmp3, tmp2, tmp4)
    tmp6 = tmp0 + tmp5
    tmp7 = tl.broadcast_to(tmp6, [XBLOCK, R0_BLOCK])
    tmp9 = tl.broadcast_to(tmp7, [XBLOCK, R0_BLOCK])
    tmp11 = tl.where(r0_mask & xmask, tmp9, float("-inf"))
    tmp12 = triton_helpers.max2(tmp11, 1)[:, None]
    tmp13 = tmp7 - tmp12
    tmp14 = tl_math.exp(tmp13)
    tmp15 = tl.broadcast_to(tmp14, [XBLOCK, R0_BLOCK])
    tmp17 = tl.where(r0_mask & xmask, tmp15, 0)
    tmp18 = tl.sum(tmp17, 1)[:, None]
    tmp19 = tmp6 == tmp4
    tmp20 = tmp19 == 0
    tmp21 = tmp20.to(tl.int64)
    tmp22 = (tmp21 != 0)
    tmp23 = tl.broadcast_to(tmp22, [XBLOCK, R0_BLOCK])
    tmp25 = tl.where(r0_mask & xmask, tmp23, False)
    tmp26 = triton_helpers.any(tmp25, 1)[:, None]
    tmp27 = tmp26 == 0
    tmp28 = tmp6 - tmp12
    tmp29 = tl_math.exp(tmp28)
    tmp30 = (tmp29 / tmp18)
    tmp31 = tl.where(tmp27, tmp2, tmp30)
    tl.store(in_out_ptr0 + (r0_2 + 56*x3), tmp31, r0_mask & xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_26(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 172032
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 56)
    x2 = ((xindex // 1344) % 4)
    x3 = xindex // 5376
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (1290432 + x0 + 24*x2 + 288*x1 + 16128*x3), None)
    tl.store(out_ptr0 + (x4), tmp0, None)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_mul_27(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 156672
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 136)
    x2 = ((xindex // 3264) % 4)
    x3 = xindex // 13056
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (451584 + x0 + 24*x2 + 288*x1 + 39168*x3), xmask)
    tmp1 = 0.45180100180492244
    tmp2 = tmp0 * tmp1
    tl.store(out_ptr0 + (x4), tmp2, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'ynumel'],
    {'XBLOCK': 32, 'YBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_mul_28(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 1152
    xnumel = 136
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[None, :]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    x2 = xindex
    y0 = (yindex % 96)
    y1 = yindex // 96
    y3 = yindex
    tmp0 = tl.load(in_ptr0 + (451680 + y0 + 288*x2 + 39168*y1), ymask & xmask, eviction_policy='evict_last')
    tmp1 = 0.45180100180492244
    tmp2 = tmp0 * tmp1
    tl.store(out_ptr0 + (x2 + 136*y3), tmp2, ymask & xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 2, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__safe_softmax_add_scalar_tensor_where_29(in_out_ptr0, in_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6528
    r0_numel = 136
    R0_BLOCK: tl.constexpr = 256
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x3 = xindex
    x1 = xindex // 544
    tmp0 = tl.load(in_out_ptr0 + (r0_2 + 136*x3), r0_mask & xmask, other=0.0)
    tmp1 = tl.load(in_ptr0 + (1568 + r0_2 + 136*x1), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
    tmp2 = 0.0
    tmp3 = tmp1 > tmp2
    tmp4 = float("-inf")
    tmp5 = tl.where(tmp3, tmp2, tmp4)
    tmp6 = tmp0 + tmp5
    tmp7 = tl.broadcast_to(tmp6, [XBLOCK, R0_BLOCK])
    tmp9 = tl.broadcast_to(tmp7, [XBLOCK, R0_BLOCK])
    tmp11 = tl.where(r0_mask & xmask, tmp9, float("-inf"))
    tmp12 = triton_helpers.max2(tmp11, 1)[:, None]
    tmp13 = tmp7 - tmp12
    tmp14 = tl_math.exp(tmp13)
    tmp15 = tl.broadcast_to(tmp14, [XBLOCK, R0_BLOCK])
    tmp17 = tl.where(r0_mask & xmask, tmp15, 0)
    tmp18 = tl.sum(tmp17, 1)[:, None]
    tmp19 = tmp6 == tmp4
    tmp20 = tmp19 == 0
    tmp21 = tmp20.to(tl.int64)
    tmp22 = (tmp21 != 0)
    tmp23 = tl.broadcast_to(tmp22, [XBLOCK, R0_BLOCK])
    tmp25 = tl.where(r0_mask & xmask, tmp23, False)
    tmp26 = triton_helpers.any(tmp25, 1)[:, None]
    tmp27 = tmp26 == 0
    tmp28 = tmp6 - tmp12
    tmp29 = tl_math.exp(tmp28)
    tmp30 = (tmp29 / tmp18)
    tmp31 = tl.where(tmp27, tmp2, tmp30)
    tl.store(in_out_ptr0 + (r0_2 + 136*x3), tmp31, r0_mask & xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_30(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 156672
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 136)
    x2 = ((xindex // 3264) % 4)
    x3 = xindex // 13056
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (451776 + x0 + 24*x2 + 288*x1 + 39168*x3), xmask)
    tl.store(out_ptr0 + (x4), tmp0, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_31(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 150528
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 392)
    x2 = ((xindex // 9408) % 4)
    x3 = xindex // 37632
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (192 + x0 + 24*x2 + 288*x1 + 112896*x3), xmask)
    tl.store(out_ptr0 + (x4), tmp0, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_mul_32(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 150528
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 392)
    x2 = ((xindex // 9408) % 4)
    x3 = xindex // 37632
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 24*x2 + 288*x1 + 112896*x3), xmask)
    tmp1 = 0.45180100180492244
    tmp2 = tmp0 * tmp1
    tl.store(out_ptr0 + (x4), tmp2, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'ynumel'],
    {'XBLOCK': 32, 'YBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_mul_33(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 384
    xnumel = 392
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[None, :]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    x2 = xindex
    y0 = (yindex % 96)
    y1 = yindex // 96
    y3 = yindex
    tmp0 = tl.load(in_ptr0 + (96 + y0 + 288*x2 + 112896*y1), ymask & xmask, eviction_policy='evict_last')
    tmp1 = 0.45180100180492244
    tmp2 = tmp0 * tmp1
    tl.store(out_ptr0 + (x2 + 392*y3), tmp2, ymask & xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel'],
    {'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__safe_softmax_add_scalar_tensor_where_34(in_out_ptr0, in_ptr0, xnumel, r0_numel):
    xnumel = 6272
    XBLOCK: tl.constexpr = 1
    r0_numel = 392
    R0_BLOCK: tl.constexpr = 512
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = tl.full([1], xoffset, tl.int32)
    xmask = tl.full([R0_BLOCK], True, tl.int1)
    r0_index = tl.arange(0, R0_BLOCK)[:]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x3 = xindex
    x1 = xindex // 1568
    x0 = (xindex % 1568)
    tmp0 = tl.load(in_out_ptr0 + (r0_2 + 392*x3), r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr0 + (r0_2 + 392*x1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp2 = 0.0
    tmp3 = tmp1 > tmp2
    tmp4 = float("-inf")
    tmp5 = tl.where(tmp3, tmp2, tmp4)
    tmp6 = tmp0 + tmp5
    tmp7 = tl.broadcast_to(tmp6, [R0_BLOCK])
    tmp9 = tl.broadcast_to(tmp7, [R0_BLOCK])
    tmp11 = tl.where(r0_mask, tmp9, float("-inf"))
    tmp12 = triton_helpers.promote_to_tensor(triton_helpers.max2(tmp11, 0))
    tmp13 = tmp7 - tmp12
    tmp14 = tl_math.exp(tmp13)
    tmp15 = tl.broadcast_to(tmp14, [R0_BLOCK])
    tmp17 = tl.where(r0_mask, tmp15, 0)
    tmp18 = triton_helpers.promote_to_tensor(tl.sum(tmp17, 0))
    tmp19 = tmp6 == tmp4
    tmp20 = tmp19 == 0
    tmp21 = tmp20.to(tl.int64)
    tmp22 = (tmp21 != 0)
    tmp23 = tl.broadcast_to(tmp22, [R0_BLOCK])
    tmp25 = tl.where(r0_mask, tmp23, False)
    tmp26 = triton_helpers.promote_to_tensor(triton_helpers.any(tmp25, 0))
    tmp27 = tmp26 == 0
    tmp28 = tmp6 - tmp12
    tmp29 = tl_math.exp(tmp28)
    tmp30 = (tmp29 / tmp18)
    tmp31 = tl.where(tmp27, tmp2, tmp30)
    tl.store(in_out_ptr0 + (r0_2 + 392*x3), tmp31, r0_mask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_cat_35(in_ptr0, in_ptr1, in_ptr2, in_ptr3, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 602112
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x1 = xindex // 96
    x0 = (xindex % 96)
    x2 = xindex
    tmp0 = x1
    tmp1 = tl.full([1], 0, tl.int64)
    tmp2 = tmp0 >= tmp1
    tmp3 = tl.full([1], 1568, tl.int64)
    tmp4 = tmp0 < tmp3
    tmp5 = tmp4.to(tl.int1)
    tmp6 = tl.load(in_ptr0 + (24*(((x1) % 392)) + 9408*(x0 // 24) + 37632*((((x1) // 392) % 4)) + ((x0 % 24))), tmp5, other=0.0)
    tmp7 = tmp0 >= tmp3
    tmp8 = tl.full([1], 3200, tl.int64)
    tmp9 = tmp0 < tmp8
    tmp10 = tmp7 & tmp9
    tmp11 = tmp10.to(tl.int1)
    tmp12 = tl.load(in_ptr1 + (24*((((-1568) + x1) % 136)) + 3264*(x0 // 24) + 13056*(((((-1568) + x1) // 136) % 12)) + ((x0 % 24))), tmp11, other=0.0)
    tmp13 = tmp0 >= tmp8
    tmp14 = tl.full([1], 4480, tl.int64)
    tmp15 = tmp0 < tmp14
    tmp16 = tmp13 & tmp15
    tmp17 = tmp16.to(tl.int1)
    tmp18 = tl.load(in_ptr2 + (24*((((-3200) + x1) % 80)) + 1920*(x0 // 24) + 7680*(((((-3200) + x1) // 80) % 16)) + ((x0 % 24))), tmp17, other=0.0)
    tmp19 = tmp0 >= tmp14
    tmp20 = tl.full([1], 6272, tl.int64)
    tmp21 = tmp0 < tmp20
    tmp22 = tmp19.to(tl.int1)
    tmp23 = tl.load(in_ptr3 + (24*((((-4480) + x1) % 56)) + 1344*(x0 // 24) + 5376*(((((-4480) + x1) // 56) % 32)) + ((x0 % 24))), tmp22, other=0.0)
    tmp24 = tl.where(tmp16, tmp18, tmp23)
    tmp25 = tl.where(tmp10, tmp12, tmp24)
    tmp26 = tl.where(tmp4, tmp6, tmp25)
    tl.store(out_ptr0 + (x2), tmp26, None)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*i64', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'in_ptr6': '*fp32', 'out_ptr2': '*fp32', 'out_ptr3': '*fp32', 'out_ptr4': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'in_ptr6', 'out_ptr2', 'out_ptr3', 'out_ptr4', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_add_addmm_embedding_native_layer_norm_native_layer_norm_backward_36(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, in_ptr6, out_ptr2, out_ptr3, out_ptr4, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6272
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    x0 = xindex
    r0_1 = r0_index
    tmp0 = tl.load(in_ptr0 + (x0), xmask, eviction_policy='evict_last')
    tmp7 = tl.load(in_out_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp8 = tl.load(in_ptr2 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp11 = tl.load(in_ptr3 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp12 = tl.load(in_ptr4 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp38 = tl.load(in_ptr5 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp40 = tl.load(in_ptr6 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp1 = tl.full([XBLOCK, R0_BLOCK], 896, tl.int32)
    tmp2 = tmp0 + tmp1
    tmp3 = tmp0 < 0
    tmp4 = tl.where(tmp3, tmp2, tmp0)
    tl.device_assert(((0 <= tmp4) & (tmp4 < 896)) | ~(xmask), "index out of bounds: 0 <= tmp4 < 896")
    tmp6 = tl.load(in_ptr1 + (r0_1 + 96*tmp4), xmask & r0_mask, other=0.0)
    tmp9 = tmp7 + tmp8
    tmp10 = tmp6 + tmp9
    tmp13 = tmp11 + tmp12
    tmp14 = tmp10 + tmp13
    tmp15 = tl.broadcast_to(tmp14, [XBLOCK, R0_BLOCK])
    tmp17 = tl.where(r0_mask & xmask, tmp15, 0)
    tmp18 = tl.broadcast_to(tmp15, [XBLOCK, R0_BLOCK])
    tmp20 = tl.where(r0_mask & xmask, tmp18, 0)
    tmp21 = tl.sum(tmp20, 1)[:, None]
    tmp22 = tl.full([XBLOCK, 1], 96, tl.int32)
    tmp23 = tmp22.to(tl.float32)
    tmp24 = (tmp21 / tmp23)
    tmp25 = tmp15 - tmp24
    tmp26 = tmp25 * tmp25
    tmp27 = tl.broadcast_to(tmp26, [XBLOCK, R0_BLOCK])
    tmp29 = tl.where(r0_mask & xmask, tmp27, 0)
    tmp30 = tl.sum(tmp29, 1)[:, None]
    tmp31 = tmp14 - tmp24
    tmp32 = 96.0
    tmp33 = (tmp30 / tmp32)
    tmp34 = 1e-05
    tmp35 = tmp33 + tmp34
    tmp36 = libdevice.rsqrt(tmp35)
    tmp37 = tmp31 * tmp36
    tmp39 = tmp37 * tmp38
    tmp41 = tmp39 + tmp40
    tmp42 = 0.010416666666666666
    tmp43 = tmp36 * tmp42
    tl.store(in_out_ptr0 + (r0_1 + 96*x0), tmp14, xmask & r0_mask)
    tl.store(out_ptr2 + (r0_1 + 96*x0), tmp37, xmask & r0_mask)
    tl.store(out_ptr3 + (r0_1 + 96*x0), tmp41, xmask & r0_mask)
    tl.store(out_ptr4 + (x0), tmp43, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_gelu_37(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 2408448
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), None)
    tmp1 = 0.5
    tmp2 = tmp0 * tmp1
    tmp3 = tmp0 * tmp0
    tmp4 = tmp3 * tmp0
    tmp5 = 0.044715
    tmp6 = tmp4 * tmp5
    tmp7 = tmp0 + tmp6
    tmp8 = 0.7978845608028654
    tmp9 = tmp7 * tmp8
    tmp10 = libdevice.tanh(tmp9)
    tmp11 = 1.0
    tmp12 = tmp10 + tmp11
    tmp13 = tmp2 * tmp12
    tl.store(out_ptr0 + (x0), tmp13, None)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'out_ptr2': '*fp32', 'out_ptr3': '*fp32', 'out_ptr4': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'out_ptr2', 'out_ptr3', 'out_ptr4', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_add_addmm_native_layer_norm_native_layer_norm_backward_38(in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, out_ptr2, out_ptr3, out_ptr4, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6272
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr1 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp2 = tl.load(in_ptr2 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp28 = tl.load(in_ptr3 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp30 = tl.load(in_ptr4 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp3 = tmp1 + tmp2
    tmp4 = tmp0 + tmp3
    tmp5 = tl.broadcast_to(tmp4, [XBLOCK, R0_BLOCK])
    tmp7 = tl.where(r0_mask & xmask, tmp5, 0)
    tmp8 = tl.broadcast_to(tmp5, [XBLOCK, R0_BLOCK])
    tmp10 = tl.where(r0_mask & xmask, tmp8, 0)
    tmp11 = tl.sum(tmp10, 1)[:, None]
    tmp12 = tl.full([XBLOCK, 1], 96, tl.int32)
    tmp13 = tmp12.to(tl.float32)
    tmp14 = (tmp11 / tmp13)
    tmp15 = tmp5 - tmp14
    tmp16 = tmp15 * tmp15
    tmp17 = tl.broadcast_to(tmp16, [XBLOCK, R0_BLOCK])
    tmp19 = tl.where(r0_mask & xmask, tmp17, 0)
    tmp20 = tl.sum(tmp19, 1)[:, None]
    tmp21 = tmp4 - tmp14
    tmp22 = 96.0
    tmp23 = (tmp20 / tmp22)
    tmp24 = 1e-05
    tmp25 = tmp23 + tmp24
    tmp26 = libdevice.rsqrt(tmp25)
    tmp27 = tmp21 * tmp26
    tmp29 = tmp27 * tmp28
    tmp31 = tmp29 + tmp30
    tmp32 = 0.010416666666666666
    tmp33 = tmp26 * tmp32
    tl.store(out_ptr2 + (r0_1 + 96*x0), tmp27, xmask & r0_mask)
    tl.store(out_ptr3 + (r0_1 + 96*x0), tmp31, xmask & r0_mask)
    tl.store(out_ptr4 + (x0), tmp33, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'out_ptr2': '*fp32', 'out_ptr3': '*fp32', 'out_ptr4': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'out_ptr2', 'out_ptr3', 'out_ptr4', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_add_addmm_native_layer_norm_native_layer_norm_backward_39(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, out_ptr2, out_ptr3, out_ptr4, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6272
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp2 = tl.load(in_ptr1 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp5 = tl.load(in_ptr2 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp6 = tl.load(in_ptr3 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp32 = tl.load(in_ptr4 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp34 = tl.load(in_ptr5 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp3 = tmp1 + tmp2
    tmp4 = tmp0 + tmp3
    tmp7 = tmp5 + tmp6
    tmp8 = tmp4 + tmp7
    tmp9 = tl.broadcast_to(tmp8, [XBLOCK, R0_BLOCK])
    tmp11 = tl.where(r0_mask & xmask, tmp9, 0)
    tmp12 = tl.broadcast_to(tmp9, [XBLOCK, R0_BLOCK])
    tmp14 = tl.where(r0_mask & xmask, tmp12, 0)
    tmp15 = tl.sum(tmp14, 1)[:, None]
    tmp16 = tl.full([XBLOCK, 1], 96, tl.int32)
    tmp17 = tmp16.to(tl.float32)
    tmp18 = (tmp15 / tmp17)
    tmp19 = tmp9 - tmp18
    tmp20 = tmp19 * tmp19
    tmp21 = tl.broadcast_to(tmp20, [XBLOCK, R0_BLOCK])
    tmp23 = tl.where(r0_mask & xmask, tmp21, 0)
    tmp24 = tl.sum(tmp23, 1)[:, None]
    tmp25 = tmp8 - tmp18
    tmp26 = 96.0
    tmp27 = (tmp24 / tmp26)
    tmp28 = 1e-05
    tmp29 = tmp27 + tmp28
    tmp30 = libdevice.rsqrt(tmp29)
    tmp31 = tmp25 * tmp30
    tmp33 = tmp31 * tmp32
    tmp35 = tmp33 + tmp34
    tmp36 = 0.010416666666666666
    tmp37 = tmp30 * tmp36
    tl.store(in_out_ptr0 + (r0_1 + 96*x0), tmp8, xmask & r0_mask)
    tl.store(out_ptr2 + (r0_1 + 96*x0), tmp31, xmask & r0_mask)
    tl.store(out_ptr3 + (r0_1 + 96*x0), tmp35, xmask & r0_mask)
    tl.store(out_ptr4 + (x0), tmp37, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'out_ptr2': '*fp32', 'out_ptr5': '*fp32', 'out_ptr6': '*fp32', 'out_ptr7': '*fp32', 'out_ptr8': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'out_ptr2', 'out_ptr5', 'out_ptr6', 'out_ptr7', 'out_ptr8', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_add_addmm_native_layer_norm_native_layer_norm_backward_40(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, out_ptr2, out_ptr5, out_ptr6, out_ptr7, out_ptr8, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6272
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp2 = tl.load(in_ptr1 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp28 = tl.load(in_ptr2 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp30 = tl.load(in_ptr3 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp51 = tl.load(in_ptr4 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp53 = tl.load(in_ptr5 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp3 = tmp1 + tmp2
    tmp4 = tmp0 + tmp3
    tmp5 = tl.broadcast_to(tmp4, [XBLOCK, R0_BLOCK])
    tmp7 = tl.where(r0_mask & xmask, tmp5, 0)
    tmp8 = tl.broadcast_to(tmp5, [XBLOCK, R0_BLOCK])
    tmp10 = tl.where(r0_mask & xmask, tmp8, 0)
    tmp11 = tl.sum(tmp10, 1)[:, None]
    tmp12 = tl.full([XBLOCK, 1], 96, tl.int32)
    tmp13 = tmp12.to(tl.float32)
    tmp14 = (tmp11 / tmp13)
    tmp15 = tmp5 - tmp14
    tmp16 = tmp15 * tmp15
    tmp17 = tl.broadcast_to(tmp16, [XBLOCK, R0_BLOCK])
    tmp19 = tl.where(r0_mask & xmask, tmp17, 0)
    tmp20 = tl.sum(tmp19, 1)[:, None]
    tmp21 = tmp4 - tmp14
    tmp22 = 96.0
    tmp23 = (tmp20 / tmp22)
    tmp24 = 1e-05
    tmp25 = tmp23 + tmp24
    tmp26 = libdevice.rsqrt(tmp25)
    tmp27 = tmp21 * tmp26
    tmp29 = tmp27 * tmp28
    tmp31 = tmp29 + tmp30
    tmp32 = tl.broadcast_to(tmp31, [XBLOCK, R0_BLOCK])
    tmp34 = tl.where(r0_mask & xmask, tmp32, 0)
    tmp35 = tl.broadcast_to(tmp32, [XBLOCK, R0_BLOCK])
    tmp37 = tl.where(r0_mask & xmask, tmp35, 0)
    tmp38 = tl.sum(tmp37, 1)[:, None]
    tmp39 = (tmp38 / tmp13)
    tmp40 = tmp32 - tmp39
    tmp41 = tmp40 * tmp40
    tmp42 = tl.broadcast_to(tmp41, [XBLOCK, R0_BLOCK])
    tmp44 = tl.where(r0_mask & xmask, tmp42, 0)
    tmp45 = tl.sum(tmp44, 1)[:, None]
    tmp46 = tmp31 - tmp39
    tmp47 = (tmp45 / tmp22)
    tmp48 = tmp47 + tmp24
    tmp49 = libdevice.rsqrt(tmp48)
    tmp50 = tmp46 * tmp49
    tmp52 = tmp50 * tmp51
    tmp54 = tmp52 + tmp53
    tmp55 = 0.010416666666666666
    tmp56 = tmp49 * tmp55
    tmp57 = tmp26 * tmp55
    tl.store(in_out_ptr0 + (r0_1 + 96*x0), tmp27, xmask & r0_mask)
    tl.store(out_ptr2 + (r0_1 + 96*x0), tmp31, xmask & r0_mask)
    tl.store(out_ptr5 + (r0_1 + 96*x0), tmp50, xmask & r0_mask)
    tl.store(out_ptr6 + (r0_1 + 96*x0), tmp54, xmask & r0_mask)
    tl.store(out_ptr7 + (x0), tmp56, xmask)
    tl.store(out_ptr8 + (x0), tmp57, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_bitwise_not_masked_fill_41(in_ptr0, in_ptr1, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 64
    r0_numel = 98
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x1 = xindex // 4
    x0 = (xindex % 4)
    _tmp8 = tl.full([XBLOCK, R0_BLOCK], float("-inf"), tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = tl.load(in_ptr0 + (r0_2 + 98*x1), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp4 = tl.load(in_ptr1 + (x0 + 4*r0_2 + 392*x1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = 0.0
        tmp2 = tmp0 > tmp1
        tmp3 = tmp2 == 0
        tmp5 = -3.4028234663852886e+38
        tmp6 = tl.where(tmp3, tmp5, tmp4)
        tmp7 = tl.broadcast_to(tmp6, [XBLOCK, R0_BLOCK])
        tmp9 = triton_helpers.maximum(_tmp8, tmp7)
        _tmp8 = tl.where(r0_mask & xmask, tmp9, _tmp8)
    tmp8 = triton_helpers.max2(_tmp8, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp8, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 16, 'num_warps': 1, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_bitwise_not_masked_fill_42(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 16
    r0_numel = 4
    R0_BLOCK: tl.constexpr = 4
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x0 = (xindex % 4)
    x1 = xindex // 4
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 4*r0_2 + 16*x1), xmask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(xmask, tmp1, float("-inf"))
    tmp4 = triton_helpers.max2(tmp3, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp4, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_bitwise_not_masked_fill_43(in_ptr0, in_ptr1, in_ptr2, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 64
    r0_numel = 98
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x4 = xindex // 4
    x0 = (xindex % 4)
    x2 = xindex // 16
    tmp7 = tl.load(in_ptr2 + (x0 + 4*x2), xmask, eviction_policy='evict_last')
    _tmp11 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x5 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_3 = r0_index
        tmp0 = tl.load(in_ptr0 + (r0_3 + 98*x4), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp4 = tl.load(in_ptr1 + (x0 + 4*r0_3 + 392*x4), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = 0.0
        tmp2 = tmp0 > tmp1
        tmp3 = tmp2 == 0
        tmp5 = -3.4028234663852886e+38
        tmp6 = tl.where(tmp3, tmp5, tmp4)
        tmp8 = tmp6 - tmp7
        tmp9 = tl_math.exp(tmp8)
        tmp10 = tl.broadcast_to(tmp9, [XBLOCK, R0_BLOCK])
        tmp12 = _tmp11 + tmp10
        _tmp11 = tl.where(r0_mask & xmask, tmp12, _tmp11)
    tmp11 = tl.sum(_tmp11, 1)[:, None]
    tl.store(out_ptr0 + (x5), tmp11, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 16, 'num_warps': 1, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_bitwise_not_masked_fill_44(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 16
    r0_numel = 4
    R0_BLOCK: tl.constexpr = 4
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x0 = (xindex % 4)
    x1 = xindex // 4
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 4*r0_2 + 16*x1), xmask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(xmask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp4, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_mul_sum_45(in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 1536
    r0_numel = 98
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x6 = xindex // 96
    x1 = ((xindex // 24) % 4)
    x3 = xindex // 384
    tmp7 = tl.load(in_ptr2 + (x1 + 4*x3), xmask, eviction_policy='evict_last')
    tmp10 = tl.load(in_ptr3 + (x1 + 4*x3), xmask, eviction_policy='evict_last')
    x5 = (xindex % 96)
    _tmp15 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x7 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_4 = r0_index
        tmp0 = tl.load(in_ptr0 + (r0_4 + 98*x6), r0_mask & xmask, eviction_policy='evict_last', other=0.0)
        tmp4 = tl.load(in_ptr1 + (x1 + 4*r0_4 + 392*x6), r0_mask & xmask, eviction_policy='evict_last', other=0.0)
        tmp12 = tl.load(in_ptr4 + (x5 + 96*r0_4 + 9408*x6), r0_mask & xmask, eviction_policy='evict_first', other=0.0)
        tmp1 = 0.0
        tmp2 = tmp0 > tmp1
        tmp3 = tmp2 == 0
        tmp5 = -3.4028234663852886e+38
        tmp6 = tl.where(tmp3, tmp5, tmp4)
        tmp8 = tmp6 - tmp7
        tmp9 = tl_math.exp(tmp8)
        tmp11 = (tmp9 / tmp10)
        tmp13 = tmp11 * tmp12
        tmp14 = tl.broadcast_to(tmp13, [XBLOCK, R0_BLOCK])
        tmp16 = _tmp15 + tmp14
        _tmp15 = tl.where(r0_mask & xmask, tmp16, _tmp15)
    tmp15 = tl.sum(_tmp15, 1)[:, None]
    tl.store(out_ptr0 + (x7), tmp15, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr1': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr1', 'xnumel'],
    {'XBLOCK': 128, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_cat_mul_sum_46(in_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 384
    r0_numel = 4
    R0_BLOCK: tl.constexpr = 4
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x0 = (xindex % 96)
    x1 = xindex // 96
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 96*r0_2 + 384*x1), xmask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(xmask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.store(out_ptr1 + (x3), tmp4, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_bitwise_not_masked_fill_47(in_ptr0, in_ptr1, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 96
    r0_numel = 68
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x1 = xindex // 4
    x0 = (xindex % 4)
    _tmp8 = tl.full([XBLOCK, R0_BLOCK], float("-inf"), tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = tl.load(in_ptr0 + (1568 + r0_2 + 68*x1), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp4 = tl.load(in_ptr1 + (6272 + x0 + 4*r0_2 + 272*x1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = 0.0
        tmp2 = tmp0 > tmp1
        tmp3 = tmp2 == 0
        tmp5 = -3.4028234663852886e+38
        tmp6 = tl.where(tmp3, tmp5, tmp4)
        tmp7 = tl.broadcast_to(tmp6, [XBLOCK, R0_BLOCK])
        tmp9 = triton_helpers.maximum(_tmp8, tmp7)
        _tmp8 = tl.where(r0_mask & xmask, tmp9, _tmp8)
    tmp8 = triton_helpers.max2(_tmp8, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp8, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 64, 'num_warps': 1, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_bitwise_not_masked_fill_48(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 48
    r0_numel = 2
    R0_BLOCK: tl.constexpr = 2
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x0 = (xindex % 4)
    x1 = xindex // 4
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 4*r0_2 + 8*x1), xmask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(xmask, tmp1, float("-inf"))
    tmp4 = triton_helpers.max2(tmp3, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp4, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_bitwise_not_masked_fill_49(in_ptr0, in_ptr1, in_ptr2, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 96
    r0_numel = 68
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x4 = xindex // 4
    x0 = (xindex % 4)
    x2 = xindex // 8
    tmp7 = tl.load(in_ptr2 + (x0 + 4*x2), xmask, eviction_policy='evict_last')
    _tmp11 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x5 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_3 = r0_index
        tmp0 = tl.load(in_ptr0 + (1568 + r0_3 + 68*x4), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp4 = tl.load(in_ptr1 + (6272 + x0 + 4*r0_3 + 272*x4), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = 0.0
        tmp2 = tmp0 > tmp1
        tmp3 = tmp2 == 0
        tmp5 = -3.4028234663852886e+38
        tmp6 = tl.where(tmp3, tmp5, tmp4)
        tmp8 = tmp6 - tmp7
        tmp9 = tl_math.exp(tmp8)
        tmp10 = tl.broadcast_to(tmp9, [XBLOCK, R0_BLOCK])
        tmp12 = _tmp11 + tmp10
        _tmp11 = tl.where(r0_mask & xmask, tmp12, _tmp11)
    tmp11 = tl.sum(_tmp11, 1)[:, None]
    tl.store(out_ptr0 + (x5), tmp11, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 64, 'num_warps': 1, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_bitwise_not_masked_fill_50(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 48
    r0_numel = 2
    R0_BLOCK: tl.constexpr = 2
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x0 = (xindex % 4)
    x1 = xindex // 4
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 4*r0_2 + 8*x1), xmask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(xmask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp4, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_mul_sum_51(in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 2304
    r0_numel = 68
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x6 = xindex // 96
    x1 = ((xindex // 24) % 4)
    x3 = xindex // 192
    tmp7 = tl.load(in_ptr2 + (x1 + 4*x3), xmask, eviction_policy='evict_last')
    tmp10 = tl.load(in_ptr3 + (x1 + 4*x3), xmask, eviction_policy='evict_last')
    x5 = (xindex % 96)
    _tmp15 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x7 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_4 = r0_index
        tmp0 = tl.load(in_ptr0 + (1568 + r0_4 + 68*x6), r0_mask & xmask, eviction_policy='evict_last', other=0.0)
        tmp4 = tl.load(in_ptr1 + (6272 + x1 + 4*r0_4 + 272*x6), r0_mask & xmask, eviction_policy='evict_last', other=0.0)
        tmp12 = tl.load(in_ptr4 + (150528 + x5 + 96*r0_4 + 6528*x6), r0_mask & xmask, eviction_policy='evict_first', other=0.0)
        tmp1 = 0.0
        tmp2 = tmp0 > tmp1
        tmp3 = tmp2 == 0
        tmp5 = -3.4028234663852886e+38
        tmp6 = tl.where(tmp3, tmp5, tmp4)
        tmp8 = tmp6 - tmp7
        tmp9 = tl_math.exp(tmp8)
        tmp11 = (tmp9 / tmp10)
        tmp13 = tmp11 * tmp12
        tmp14 = tl.broadcast_to(tmp13, [XBLOCK, R0_BLOCK])
        tmp16 = _tmp15 + tmp14
        _tmp15 = tl.where(r0_mask & xmask, tmp16, _tmp15)
    tmp15 = tl.sum(_tmp15, 1)[:, None]
    tl.store(out_ptr0 + (x7), tmp15, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr1': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr1', 'xnumel'],
    {'XBLOCK': 128, 'num_warps': 2, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_cat_mul_sum_52(in_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 1152
    r0_numel = 2
    R0_BLOCK: tl.constexpr = 2
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x0 = (xindex % 96)
    x1 = xindex // 96
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 96*r0_2 + 192*x1), xmask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(xmask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.store(out_ptr1 + (x3), tmp4, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'out_ptr1': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'out_ptr0', 'out_ptr1', 'xnumel', 'r0_numel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_bitwise_not_masked_fill_53(in_ptr0, in_ptr1, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 64
    r0_numel = 80
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x1 = xindex // 4
    x0 = (xindex % 4)
    _tmp8_max = tl.full([XBLOCK, R0_BLOCK], float('-inf'), tl.float32)
    _tmp8_sum = tl.zeros([XBLOCK, R0_BLOCK], tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = tl.load(in_ptr0 + (3200 + r0_2 + 80*x1), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp4 = tl.load(in_ptr1 + (12800 + x0 + 4*r0_2 + 320*x1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = 0.0
        tmp2 = tmp0 > tmp1
        tmp3 = tmp2 == 0
        tmp5 = -3.4028234663852886e+38
        tmp6 = tl.where(tmp3, tmp5, tmp4)
        tmp7 = tl.broadcast_to(tmp6, [XBLOCK, R0_BLOCK])

        _tmp8_max_next, _tmp8_sum_next = triton_helpers.online_softmax_combine(
            _tmp8_max, _tmp8_sum, tmp7, False
        )

        _tmp8_max = tl.where(r0_mask & xmask, _tmp8_max_next, _tmp8_max)
        _tmp8_sum = tl.where(r0_mask & xmask, _tmp8_sum_next, _tmp8_sum)

    tmp10, tmp11 = triton_helpers.online_softmax_reduce(
        _tmp8_max, _tmp8_sum, 1, False)
    tmp10 = tmp10[:, None]
    tmp11 = tmp11[:, None]
    tmp8 = tmp10
    tmp9 = tmp11
    tl.store(out_ptr0 + (x3), tmp8, xmask)
    tl.store(out_ptr1 + (x3), tmp9, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'out_ptr1': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'out_ptr1', 'xnumel', 'r0_numel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_cat_mul_sum_54(in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 1536
    r0_numel = 80
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x2 = xindex // 96
    x1 = ((xindex // 24) % 4)
    x6 = xindex // 24
    tmp7 = tl.load(in_ptr2 + (x6), xmask, eviction_policy='evict_last')
    tmp10 = tl.load(in_ptr3 + (x6), xmask, eviction_policy='evict_last')
    x5 = (xindex % 96)
    _tmp15 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x4 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_3 = r0_index
        tmp0 = tl.load(in_ptr0 + (3200 + r0_3 + 80*x2), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp4 = tl.load(in_ptr1 + (12800 + x1 + 4*r0_3 + 320*x2), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp12 = tl.load(in_ptr4 + (307200 + x5 + 96*r0_3 + 7680*x2), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = 0.0
        tmp2 = tmp0 > tmp1
        tmp3 = tmp2 == 0
        tmp5 = -3.4028234663852886e+38
        tmp6 = tl.where(tmp3, tmp5, tmp4)
        tmp8 = tmp6 - tmp7
        tmp9 = tl_math.exp(tmp8)
        tmp11 = (tmp9 / tmp10)
        tmp13 = tmp11 * tmp12
        tmp14 = tl.broadcast_to(tmp13, [XBLOCK, R0_BLOCK])
        tmp16 = _tmp15 + tmp14
        _tmp15 = tl.where(r0_mask & xmask, tmp16, _tmp15)
    tmp15 = tl.sum(_tmp15, 1)[:, None]
    tl.store(out_ptr1 + (x4), tmp15, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'out_ptr1': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'out_ptr0', 'out_ptr1', 'xnumel'],
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_bitwise_not_masked_fill_55(in_ptr0, in_ptr1, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 128
    r0_numel = 56
    R0_BLOCK: tl.constexpr = 64
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x1 = xindex // 4
    x0 = (xindex % 4)
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (4480 + r0_2 + 56*x1), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
    tmp4 = tl.load(in_ptr1 + (17920 + x0 + 4*r0_2 + 224*x1), xmask & r0_mask, other=0.0)
    tmp1 = 0.0
    tmp2 = tmp0 > tmp1
    tmp3 = tmp2 == 0
    tmp5 = -3.4028234663852886e+38
    tmp6 = tl.where(tmp3, tmp5, tmp4)
    tmp7 = tl.broadcast_to(tmp6, [XBLOCK, R0_BLOCK])
    tmp9 = tl.broadcast_to(tmp7, [XBLOCK, R0_BLOCK])
    tmp11 = tl.where(r0_mask & xmask, tmp9, float("-inf"))
    tmp12 = triton_helpers.max2(tmp11, 1)[:, None]
    tmp13 = tmp7 - tmp12
    tmp14 = tl_math.exp(tmp13)
    tmp15 = tl.broadcast_to(tmp14, [XBLOCK, R0_BLOCK])
    tmp17 = tl.where(r0_mask & xmask, tmp15, 0)
    tmp18 = tl.sum(tmp17, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp12, xmask)
    tl.store(out_ptr1 + (x3), tmp18, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'out_ptr1': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'out_ptr1', 'xnumel'],
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_cat_mul_sum_56(in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 3072
    r0_numel = 56
    R0_BLOCK: tl.constexpr = 64
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_3 = r0_index
    x2 = xindex // 96
    x1 = ((xindex // 24) % 4)
    x6 = xindex // 24
    x5 = (xindex % 96)
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (4480 + r0_3 + 56*x2), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
    tmp4 = tl.load(in_ptr1 + (17920 + x1 + 4*r0_3 + 224*x2), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
    tmp7 = tl.load(in_ptr2 + (x6), xmask, eviction_policy='evict_last')
    tmp10 = tl.load(in_ptr3 + (x6), xmask, eviction_policy='evict_last')
    tmp12 = tl.load(in_ptr4 + (430080 + x5 + 96*r0_3 + 5376*x2), xmask & r0_mask, other=0.0)
    tmp1 = 0.0
    tmp2 = tmp0 > tmp1
    tmp3 = tmp2 == 0
    tmp5 = -3.4028234663852886e+38
    tmp6 = tl.where(tmp3, tmp5, tmp4)
    tmp8 = tmp6 - tmp7
    tmp9 = tl_math.exp(tmp8)
    tmp11 = (tmp9 / tmp10)
    tmp13 = tmp11 * tmp12
    tmp14 = tl.broadcast_to(tmp13, [XBLOCK, R0_BLOCK])
    tmp16 = tl.where(r0_mask & xmask, tmp14, 0)
    tmp17 = tl.sum(tmp16, 1)[:, None]
    tl.store(out_ptr1 + (x4), tmp17, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32'},
    ['in_ptr0', 'out_ptr0'],
    {'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_pow_sum_57(in_ptr0, out_ptr0, xnumel, r0_numel):
    xnumel = 4
    XBLOCK: tl.constexpr = 1
    r0_numel = 392
    R0_BLOCK: tl.constexpr = 512
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = tl.full([1], xoffset, tl.int32)
    xmask = tl.full([R0_BLOCK], True, tl.int1)
    r0_index = tl.arange(0, R0_BLOCK)[:]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_1 + 392*x0), r0_mask, other=0.0)
    tmp1 = libdevice.sqrt(tmp0)
    tmp2 = tmp1 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [R0_BLOCK])
    tmp5 = tl.where(r0_mask, tmp3, 0)
    tmp6 = triton_helpers.promote_to_tensor(tl.sum(tmp5, 0))
    tl.store(out_ptr0 + (x0), tmp6, None)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0'],
    {'XBLOCK': 1, 'num_warps': 2, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_pow_sum_58(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 12
    r0_numel = 136
    R0_BLOCK: tl.constexpr = 256
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (1568 + r0_1 + 136*x0), xmask & r0_mask, other=0.0)
    tmp1 = libdevice.sqrt(tmp0)
    tmp2 = tmp1 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp6, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_pow_sum_59(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 16
    r0_numel = 80
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (3200 + r0_1 + 80*x0), xmask & r0_mask, other=0.0)
    tmp1 = libdevice.sqrt(tmp0)
    tmp2 = tmp1 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp6, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_pow_sum_60(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 32
    r0_numel = 56
    R0_BLOCK: tl.constexpr = 64
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (4480 + r0_1 + 56*x0), xmask & r0_mask, other=0.0)
    tmp1 = libdevice.sqrt(tmp0)
    tmp2 = tmp1 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp6, xmask)


@kernel(
    {'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_zeros_61(out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 114688
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = xindex
    tmp0 = 0.0
    tl.store(out_ptr0 + (x0), tmp0, None)


@kernel(
    {'in_ptr0': '*i64', 'in_ptr1': '*i64', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 256, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 2, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_cat_index_add_zeros_62(in_ptr0, in_ptr1, in_ptr2, in_ptr3, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 12544
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = x0
    tmp1 = tl.full([1], 0, tl.int64)
    tmp2 = tmp0 >= tmp1
    tmp3 = tl.full([1], 6272, tl.int64)
    tmp4 = tmp0 < tmp3
    tmp5 = tmp4.to(tl.int1)
    tmp6 = tl.load(in_ptr0 + (x0), xmask & tmp5, eviction_policy='evict_last', other=0.0)
    tmp7 = tl.full([1], 896, tl.int64)
    tmp8 = tmp6 * tmp7
    tmp9 = tl.load(in_ptr1 + (x0), xmask & tmp5, eviction_policy='evict_last', other=0.0)
    tmp10 = tmp8 + tmp9
    tmp11 = tl.full(tmp10.shape, 0.0, tmp10.dtype)
    tmp12 = tl.where(tmp5, tmp10, tmp11)
    tmp13 = tmp0 >= tmp3
    tmp14 = tl.full([1], 12544, tl.int64)
    tmp15 = tmp0 < tmp14
    tmp16 = tmp13.to(tl.int1)
    tmp17 = tl.load(in_ptr0 + ((-6272) + x0), xmask & tmp16, eviction_policy='evict_last', other=0.0)
    tmp18 = tl.full([1], 896, tl.int64)
    tmp19 = tmp17 * tmp18
    tmp20 = tl.load(in_ptr1 + ((-6272) + x0), xmask & tmp16, eviction_policy='evict_last', other=0.0)
    tmp21 = tmp19 + tmp20
    tmp22 = tl.full([1], 57344, tl.int64)
    tmp23 = tmp21 + tmp22
    tmp24 = tl.full(tmp23.shape, 0.0, tmp23.dtype)
    tmp25 = tl.where(tmp16, tmp23, tmp24)
    tmp26 = tl.where(tmp4, tmp12, tmp25)
    tmp27 = tl.full([XBLOCK], 114688, tl.int32)
    tmp28 = tmp26 + tmp27
    tmp29 = tmp26 < 0
    tmp30 = tl.where(tmp29, tmp28, tmp26)
    tl.device_assert(((0 <= tmp30) & (tmp30 < 114688)) | ~(xmask), "index out of bounds: 0 <= tmp30 < 114688")
    tmp32 = tl.load(in_ptr2 + (x0), xmask & tmp5, eviction_policy='evict_last', other=0.0)
    tmp33 = libdevice.sqrt(tmp32)
    tmp34 = tl.full([XBLOCK], 64, tl.int32)
    tmp35 = tmp6 + tmp34
    tmp36 = tmp6 < 0
    tmp37 = tl.where(tmp36, tmp35, tmp6)
    tl.device_assert(((0 <= tl.broadcast_to(tmp37, [XBLOCK])) & (tl.broadcast_to(tmp37, [XBLOCK]) < 64)) | ~(xmask & tmp5), "index out of bounds: 0 <= tl.broadcast_to(tmp37, [XBLOCK]) < 64")
    tmp39 = tl.load(in_ptr3 + (tl.broadcast_to(tmp37, [XBLOCK])), xmask & tmp5, eviction_policy='evict_last', other=0.0)
    tmp40 = libdevice.sqrt(tmp39)
    tmp41 = (tmp33 / tmp40)
    tmp42 = tl.full(tmp41.shape, 0.0, tmp41.dtype)
    tmp43 = tl.where(tmp5, tmp41, tmp42)
    tmp44 = tl.load(in_ptr2 + ((-6272) + x0), xmask & tmp16, eviction_policy='evict_last', other=0.0)
    tmp45 = 0.0
    tmp46 = tmp44 > tmp45
    tmp47 = tmp46.to(tl.float32)
    tmp48 = tl.full(tmp47.shape, 0.0, tmp47.dtype)
    tmp49 = tl.where(tmp16, tmp47, tmp48)
    tmp50 = tl.where(tmp4, tmp43, tmp49)
    tl.atomic_add(out_ptr0 + (tl.broadcast_to(tmp30, [XBLOCK])), tmp50, xmask, sem='relaxed')


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_softplus_63(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 344064
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), None)
    tmp1 = 20.0
    tmp2 = tmp0 > tmp1
    tmp3 = tl_math.exp(tmp0)
    tmp4 = libdevice.log1p(tmp3)
    tmp5 = tl.where(tmp2, tmp0, tmp4)
    tl.store(out_ptr0 + (x0), tmp5, None)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 256, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 2, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_expm1_neg_64(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 24576
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), None)
    tmp1 = -tmp0
    tmp2 = libdevice.expm1(tmp1)
    tmp3 = -tmp2
    tl.store(out_ptr0 + (x0), tmp3, None)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'xnumel'],
    {'XBLOCK': 256, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 2, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_add_addmm_65(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, xnumel, XBLOCK : tl.constexpr):
    xnumel = 6144
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x2 = xindex
    x0 = (xindex % 96)
    tmp0 = tl.load(in_out_ptr0 + (x2), xmask)
    tmp1 = tl.load(in_ptr0 + (x0), xmask, eviction_policy='evict_last')
    tmp3 = tl.load(in_ptr1 + (x2), xmask)
    tmp4 = tl.load(in_ptr2 + (x0), xmask, eviction_policy='evict_last')
    tmp6 = tl.load(in_ptr3 + (x2), xmask)
    tmp7 = tl.load(in_ptr4 + (x0), xmask, eviction_policy='evict_last')
    tmp2 = tmp0 + tmp1
    tmp5 = tmp3 + tmp4
    tmp8 = tmp6 + tmp7
    tmp9 = tmp5 + tmp8
    tmp10 = tmp2 + tmp9
    tl.store(in_out_ptr0 + (x2), tmp10, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_66(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 168000
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x2 = xindex
    x1 = xindex // 4
    tmp0 = tl.load(in_ptr0 + (x2), xmask)
    tmp1 = tl.load(in_ptr0 + (4*x1), xmask, eviction_policy='evict_last')
    tmp2 = tl.load(in_ptr0 + (1 + 4*x1), xmask, eviction_policy='evict_last')
    tmp4 = tl.load(in_ptr0 + (2 + 4*x1), xmask, eviction_policy='evict_last')
    tmp6 = tl.load(in_ptr0 + (3 + 4*x1), xmask, eviction_policy='evict_last')
    tmp3 = triton_helpers.maximum(tmp1, tmp2)
    tmp5 = triton_helpers.maximum(tmp3, tmp4)
    tmp7 = triton_helpers.maximum(tmp5, tmp6)
    tmp8 = tmp0 - tmp7
    tl.store(out_ptr0 + (x2), tmp8, xmask)


@kernel(
    {'in_ptr0': '*i64', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'out_ptr0', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_nll_loss_forward_scalar_tensor_67(in_ptr0, in_ptr1, in_ptr2, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 330
    r0_numel = 128
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x0 = (xindex % 55)
    x1 = xindex // 55
    x3 = xindex
    tmp0 = r0_2 + 128*x0
    tmp1 = tl.full([1, 1], 7000, tl.int32)
    tmp2 = tmp0 < tmp1
    tmp3 = tmp2.to(tl.int1)
    tmp4 = tl.load(in_ptr0 + (r0_2 + 128*x0 + 7000*x1), xmask & tmp3, other=0.0)
    tmp5 = tl.full([1, 1], -100, tl.int64)
    tmp6 = tmp4 != tmp5
    tmp7 = tl.full([1, 1], 0, tl.int64)
    tmp8 = tl.where(tmp6, tmp4, tmp7)
    tmp9 = tl.full([XBLOCK, R0_BLOCK], 4, tl.int32)
    tmp10 = tmp8 + tmp9
    tmp11 = tmp8 < 0
    tmp12 = tl.where(tmp11, tmp10, tmp8)
    tl.device_assert(((0 <= tl.broadcast_to(tmp12, [XBLOCK, R0_BLOCK])) & (tl.broadcast_to(tmp12, [XBLOCK, R0_BLOCK]) < 4)) | ~(xmask & tmp3), "index out of bounds: 0 <= tl.broadcast_to(tmp12, [XBLOCK, R0_BLOCK]) < 4")
    tmp14 = tl.load(in_ptr1 + (tmp12 + 4*r0_2 + 512*x0 + 28000*x1), xmask & tmp3, eviction_policy='evict_last', other=0.0)
    tmp15 = tl.load(in_ptr2 + (4*r0_2 + 512*x0 + 28000*x1), xmask & tmp3, eviction_policy='evict_last', other=0.0)
    tmp16 = tl.load(in_ptr2 + (1 + 4*r0_2 + 512*x0 + 28000*x1), xmask & tmp3, eviction_policy='evict_last', other=0.0)
    tmp17 = triton_helpers.maximum(tmp15, tmp16)
    tmp18 = tl.load(in_ptr2 + (2 + 4*r0_2 + 512*x0 + 28000*x1), xmask & tmp3, eviction_policy='evict_last', other=0.0)
    tmp19 = triton_helpers.maximum(tmp17, tmp18)
    tmp20 = tl.load(in_ptr2 + (3 + 4*r0_2 + 512*x0 + 28000*x1), xmask & tmp3, eviction_policy='evict_last', other=0.0)
    tmp21 = triton_helpers.maximum(tmp19, tmp20)
    tmp22 = tmp15 - tmp21
    tmp23 = tl_math.exp(tmp22)
    tmp24 = tmp16 - tmp21
    tmp25 = tl_math.exp(tmp24)
    tmp26 = tmp23 + tmp25
    tmp27 = tmp18 - tmp21
    tmp28 = tl_math.exp(tmp27)
    tmp29 = tmp26 + tmp28
    tmp30 = tmp20 - tmp21
    tmp31 = tl_math.exp(tmp30)
    tmp32 = tmp29 + tmp31
    tmp33 = tl_math.log(tmp32)
    tmp34 = tmp14 - tmp33
    tmp35 = -tmp34
    tmp36 = 0.0
    tmp37 = tl.where(tmp6, tmp35, tmp36)
    tmp38 = tl.full(tmp37.shape, 0, tmp37.dtype)
    tmp39 = tl.where(tmp3, tmp37, tmp38)
    tmp40 = tl.broadcast_to(tmp39, [XBLOCK, R0_BLOCK])
    tmp42 = tl.where(xmask, tmp40, 0)
    tmp43 = tl.sum(tmp42, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp43, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_nll_loss_forward_scalar_tensor_68(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6
    r0_numel = 55
    R0_BLOCK: tl.constexpr = 64
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_1 + 55*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(r0_mask & xmask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp4, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'constexpr', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0'],
    {'xnumel': 1, 'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_nll_loss_forward_scalar_tensor_69(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 1
    r0_numel = 6
    R0_BLOCK: tl.constexpr = 8
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_0 = r0_index
    tmp0 = tl.load(in_ptr0 + (r0_0), r0_mask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(r0_mask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.store(out_ptr0 + (tl.full([XBLOCK, 1], 0, tl.int32)), tmp4, None)


@kernel(
    {'in_ptr0': '*i64', 'out_ptr0': '*i64', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0'],
    {'XBLOCK': 1, 'R0_BLOCK': 2048, 'num_warps': 8, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_nll_loss_forward_sum_70(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 6
    r0_numel = 7000
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x0 = xindex
    _tmp5 = tl.full([XBLOCK, R0_BLOCK], 0, tl.int64)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_1 = r0_index
        tmp0 = tl.load(in_ptr0 + (r0_1 + 7000*x0), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = tl.full([1, 1], -100, tl.int64)
        tmp2 = tmp0 != tmp1
        tmp3 = tmp2.to(tl.int64)
        tmp4 = tl.broadcast_to(tmp3, [XBLOCK, R0_BLOCK])
        tmp6 = _tmp5 + tmp4
        _tmp5 = tl.where(r0_mask & xmask, tmp6, _tmp5)
    tmp5 = tl.sum(_tmp5, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp5, xmask)


@kernel(
    {'in_ptr0': '*i64', 'out_ptr0': '*i64', 'xnumel': 'constexpr', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0'],
    {'xnumel': 1, 'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_nll_loss_forward_sum_71(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 1
    r0_numel = 6
    R0_BLOCK: tl.constexpr = 8
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_0 = r0_index
    tmp0 = tl.load(in_ptr0 + (r0_0), r0_mask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(r0_mask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.store(out_ptr0 + (tl.full([XBLOCK, 1], 0, tl.int32)), tmp4, None)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_gelu_72(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 602112
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), None)
    tmp1 = 0.5
    tmp2 = tmp0 * tmp1
    tmp3 = tmp0 * tmp0
    tmp4 = tmp3 * tmp0
    tmp5 = 0.044715
    tmp6 = tmp4 * tmp5
    tmp7 = tmp0 + tmp6
    tmp8 = 0.7978845608028654
    tmp9 = tmp7 * tmp8
    tmp10 = libdevice.tanh(tmp9)
    tmp11 = 1.0
    tmp12 = tmp10 + tmp11
    tmp13 = tmp2 * tmp12
    tl.store(out_ptr0 + (x0), tmp13, None)


@kernel(
    {'in_ptr0': '*i1', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'out_ptr0': '*fp32', 'out_ptr1': '*i64', 'xnumel': 'constexpr', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'out_ptr0', 'out_ptr1', 'r0_numel'],
    {'xnumel': 1, 'XBLOCK': 1, 'R0_BLOCK': 2048, 'num_warps': 8, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_bitwise_not_clamp_min_div_huber_loss_log_log_sigmoid_forward_masked_fill_scalar_tensor_sum_73(in_ptr0, in_ptr1, in_ptr2, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 1
    r0_numel = 6272
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    _tmp27 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    _tmp31 = tl.full([XBLOCK, R0_BLOCK], 0, tl.int64)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_0 = r0_index
        tmp0 = tl.load(in_ptr0 + (r0_0), r0_mask, eviction_policy='evict_first', other=0.0)
        tmp2 = tl.load(in_ptr1 + (r0_0), r0_mask, eviction_policy='evict_first', other=0.0)
        tmp10 = tl.load(in_ptr2 + (r0_0), r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = tmp0 == 0
        tmp3 = 0.0
        tmp4 = triton_helpers.minimum(tmp3, tmp2)
        tmp5 = tl_math.abs(tmp2)
        tmp6 = -tmp5
        tmp7 = tl_math.exp(tmp6)
        tmp8 = libdevice.log1p(tmp7)
        tmp9 = tmp4 - tmp8
        tmp11 = 1.0
        tmp12 = triton_helpers.maximum(tmp10, tmp11)
        tmp13 = 0.00011618450098756825
        tmp14 = tmp12 * tmp13
        tmp15 = tl_math.log(tmp14)
        tmp16 = tmp9 - tmp15
        tmp17 = tl_math.abs(tmp16)
        tmp18 = tmp17 < tmp11
        tmp19 = 0.5
        tmp20 = tmp17 * tmp19
        tmp21 = tmp20 * tmp17
        tmp22 = tmp17 - tmp19
        tmp23 = tmp22 * tmp11
        tmp24 = tl.where(tmp18, tmp21, tmp23)
        tmp25 = tl.where(tmp1, tmp3, tmp24)
        tmp26 = tl.broadcast_to(tmp25, [XBLOCK, R0_BLOCK])
        tmp28 = _tmp27 + tmp26
        _tmp27 = tl.where(r0_mask, tmp28, _tmp27)
        tmp29 = tmp0.to(tl.int64)
        tmp30 = tl.broadcast_to(tmp29, [XBLOCK, R0_BLOCK])
        tmp32 = _tmp31 + tmp30
        _tmp31 = tl.where(r0_mask, tmp32, _tmp31)
    tmp27 = tl.sum(_tmp27, 1)[:, None]
    tmp31 = tl.sum(_tmp31, 1)[:, None]
    tl.store(out_ptr0 + (tl.full([XBLOCK, 1], 0, tl.int32)), tmp27, None)
    tl.store(out_ptr1 + (tl.full([XBLOCK, 1], 0, tl.int32)), tmp31, None)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp64', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'out_ptr0': '*i1', 'out_ptr1': '*fp32', 'out_ptr2': '*i64', 'xnumel': 'constexpr', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'out_ptr0', 'out_ptr1', 'out_ptr2', 'r0_numel'],
    {'xnumel': 1, 'XBLOCK': 1, 'R0_BLOCK': 2048, 'num_warps': 8, 'num_stages': 1},
)
@triton.jit
def triton_red_fused__to_copy_abs_bitwise_and_bitwise_not_clamp_min_div_eq_exp_expm1_log_masked_fill_mul_ne_neg_ones_like_pow_scalar_tensor_sub_sum_triu_where_74(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, out_ptr0, out_ptr1, out_ptr2, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 1
    r0_numel = 4096
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    tmp14 = tl.load(in_ptr1 + (0))
    tmp15 = tl.broadcast_to(tmp14, [XBLOCK, R0_BLOCK])
    tmp21 = tl.load(in_ptr3 + (0))
    tmp22 = tl.broadcast_to(tmp21, [XBLOCK, R0_BLOCK])
    _tmp37 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    _tmp41 = tl.full([XBLOCK, R0_BLOCK], 0, tl.int64)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_0 = (r0_index % 64)
        r0_1 = r0_index // 64
        r0_2 = r0_index
        tmp5 = tl.load(in_ptr0 + (r0_2), r0_mask, eviction_policy='evict_first', other=0.0)
        tmp17 = tl.load(in_ptr2 + (r0_2), r0_mask, eviction_policy='evict_first', other=0.0)
        tmp0 = r0_0 + ((-1)*r0_1)
        tmp1 = tl.full([1, 1], 1, tl.int64)
        tmp2 = tmp0 >= tmp1
        tmp3 = tl.full([1, 1], True, tl.int1)
        tmp4 = tmp2 & tmp3
        tmp6 = tmp5.to(tl.float32)
        tmp7 = tmp6 == tmp6
        tmp8 = tl_math.abs(tmp6)
        tmp9 = float("inf")
        tmp10 = tmp8 != tmp9
        tmp11 = tmp7 & tmp10
        tmp12 = tmp4 & tmp11
        tmp13 = tmp12 == 0
        tmp16 = tl_math.exp(tmp15)
        tmp18 = 0.001
        tmp19 = triton_helpers.maximum(tmp17, tmp18)
        tmp20 = tl_math.log(tmp19)
        tmp23 = tmp20 - tmp22
        tmp24 = tmp16 * tmp23
        tmp25 = tl_math.exp(tmp24)
        tmp26 = -tmp25
        tmp27 = libdevice.expm1(tmp26)
        tmp28 = -tmp27
        tmp29 = tl.where(tmp11, tmp6, tmp28)
        tmp30 = tmp28 - tmp29
        tmp31 = 2.0
        tmp32 = tmp30 * tmp31
        tmp33 = tmp30 * tmp30
        tmp34 = 0.0
        tmp35 = tl.where(tmp13, tmp34, tmp33)
        tmp36 = tl.broadcast_to(tmp35, [XBLOCK, R0_BLOCK])
        tmp38 = _tmp37 + tmp36
        _tmp37 = tl.where(r0_mask, tmp38, _tmp37)
        tmp39 = tmp12.to(tl.int64)
        tmp40 = tl.broadcast_to(tmp39, [XBLOCK, R0_BLOCK])
        tmp42 = _tmp41 + tmp40
        _tmp41 = tl.where(r0_mask, tmp42, _tmp41)
        tl.store(out_ptr0 + (tl.broadcast_to(r0_2, [XBLOCK, R0_BLOCK])), tmp13, r0_mask)
        tl.store(out_ptr1 + (tl.broadcast_to(r0_2, [XBLOCK, R0_BLOCK])), tmp32, r0_mask)
    tmp37 = tl.sum(_tmp37, 1)[:, None]
    tmp41 = tl.sum(_tmp41, 1)[:, None]
    tl.store(out_ptr2 + (tl.full([XBLOCK, 1], 0, tl.int32)), tmp41, None)
    tmp43 = 24.999999999999996
    tmp44 = tmp37 * tmp43
    tl.debug_barrier()
    tl.store(in_out_ptr0 + (tl.full([XBLOCK, 1], 0, tl.int32)), tmp44, None)


@kernel(
    {'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['out_ptr0', 'xnumel'],
    {'XBLOCK': 256, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 2, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_embedding_dense_backward_0(out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 3360
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = 0.0
    tl.store(out_ptr0 + (x0), tmp0, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*i1', 'in_ptr3': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'constexpr', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'out_ptr0', 'r0_numel'],
    {'xnumel': 1, 'XBLOCK': 1, 'R0_BLOCK': 2048, 'num_warps': 8, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_bitwise_not_clamp_min_div_huber_loss_huber_loss_backward_log_log_sigmoid_backward_log_sigmoid_forward_masked_fill_nll_loss_forward_scalar_tensor_sum_1(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 1
    r0_numel = 6272
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    tmp19 = tl.load(in_ptr3 + (0))
    tmp20 = tl.broadcast_to(tmp19, [XBLOCK, R0_BLOCK])
    _tmp45 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_0 = r0_index
        tmp0 = tl.load(in_ptr0 + (r0_0), r0_mask, eviction_policy='evict_first', other=0.0)
        tmp8 = tl.load(in_ptr1 + (r0_0), r0_mask, eviction_policy='evict_first', other=0.0)
        tmp17 = tl.load(in_ptr2 + (r0_0), r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = 0.0
        tmp2 = triton_helpers.minimum(tmp1, tmp0)
        tmp3 = tl_math.abs(tmp0)
        tmp4 = -tmp3
        tmp5 = tl_math.exp(tmp4)
        tmp6 = libdevice.log1p(tmp5)
        tmp7 = tmp2 - tmp6
        tmp9 = 1.0
        tmp10 = triton_helpers.maximum(tmp8, tmp9)
        tmp11 = 0.00011618450098756825
        tmp12 = tmp10 * tmp11
        tmp13 = tl_math.log(tmp12)
        tmp14 = tmp7 - tmp13
        tmp15 = -1.0
        tmp16 = tmp14 < tmp15
        tmp18 = tmp17 == 0
        tmp21 = tl.where(tmp18, tmp1, tmp20)
        tmp22 = tmp21 * tmp15
        tmp23 = tmp22 * tmp9
        tmp24 = tmp14 > tmp9
        tmp25 = tmp21 * tmp9
        tmp26 = tmp25 * tmp9
        tmp27 = tmp14 * tmp9
        tmp28 = tmp27 * tmp21
        tmp29 = tl.where(tmp24, tmp26, tmp28)
        tmp30 = tl.where(tmp16, tmp23, tmp29)
        tmp31 = tmp0 < tmp1
        tmp32 = tl.full([1, 1], 1, tl.int64)
        tmp33 = tl.full([1, 1], 0, tl.int64)
        tmp34 = tl.where(tmp31, tmp32, tmp33)
        tmp35 = tmp34.to(tl.float32)
        tmp36 = tl.full([1, 1], -1, tl.int64)
        tmp37 = tl.where(tmp31, tmp32, tmp36)
        tmp38 = tmp37.to(tl.float32)
        tmp39 = tmp5 + tmp9
        tmp40 = (tmp5 / tmp39)
        tmp41 = tmp38 * tmp40
        tmp42 = tmp35 - tmp41
        tmp43 = tmp30 * tmp42
        tmp44 = tl.broadcast_to(tmp43, [XBLOCK, R0_BLOCK])
        tmp46 = _tmp45 + tmp44
        _tmp45 = tl.where(r0_mask, tmp46, _tmp45)
        tl.store(in_out_ptr0 + (tl.broadcast_to(r0_0, [XBLOCK, R0_BLOCK])), tmp43, r0_mask)
    tmp45 = tl.sum(_tmp45, 1)[:, None]
    tl.store(out_ptr0 + (tl.full([XBLOCK, 1], 0, tl.int32)), tmp45, None)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*i1', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'out_ptr1': '*fp32', 'out_ptr2': '*fp32', 'out_ptr3': '*fp32', 'out_ptr4': '*fp32', 'xnumel': 'constexpr', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'out_ptr1', 'out_ptr2', 'out_ptr3', 'out_ptr4', 'r0_numel'],
    {'xnumel': 1, 'XBLOCK': 1, 'R0_BLOCK': 2048, 'num_warps': 8, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_add_clamp_min_clone_div_exp_expm1_ge_log_masked_fill_mul_neg_scalar_tensor_sub_sum_where_2(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, out_ptr1, out_ptr2, out_ptr3, out_ptr4, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 1
    r0_numel = 4096
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    tmp1 = tl.load(in_ptr1 + (0))
    tmp2 = tl.broadcast_to(tmp1, [XBLOCK, R0_BLOCK])
    tmp10 = tl.load(in_ptr3 + (0))
    tmp11 = tl.broadcast_to(tmp10, [XBLOCK, R0_BLOCK])
    tmp17 = tl.load(in_ptr5 + (0))
    tmp18 = tl.broadcast_to(tmp17, [XBLOCK, R0_BLOCK])
    _tmp35 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    _tmp39 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_0 = r0_index
        tmp0 = tl.load(in_ptr0 + (r0_0), r0_mask, eviction_policy='evict_first', other=0.0)
        tmp7 = tl.load(in_ptr2 + (r0_0), r0_mask, eviction_policy='evict_first', other=0.0)
        tmp13 = tl.load(in_ptr4 + (r0_0), r0_mask, eviction_policy='evict_first', other=0.0)
        tmp3 = 24.999999999999996
        tmp4 = tmp2 * tmp3
        tmp5 = 0.0
        tmp6 = tl.where(tmp0, tmp5, tmp4)
        tmp8 = tmp6 * tmp7
        tmp9 = -tmp8
        tmp12 = tl_math.exp(tmp11)
        tmp14 = 0.001
        tmp15 = triton_helpers.maximum(tmp13, tmp14)
        tmp16 = tl_math.log(tmp15)
        tmp19 = tmp16 - tmp18
        tmp20 = tmp12 * tmp19
        tmp21 = tl_math.exp(tmp20)
        tmp22 = -tmp21
        tmp23 = libdevice.expm1(tmp22)
        tmp24 = 1.0
        tmp25 = tmp23 + tmp24
        tmp26 = tmp9 * tmp25
        tmp27 = -tmp26
        tmp28 = tmp27 * tmp21
        tmp29 = tmp13 >= tmp14
        tmp30 = tmp28 * tmp12
        tmp31 = (tmp30 / tmp15)
        tmp32 = tl.where(tmp29, tmp31, tmp5)
        tmp33 = tmp28 * tmp19
        tmp34 = tl.broadcast_to(tmp33, [XBLOCK, R0_BLOCK])
        tmp36 = _tmp35 + tmp34
        _tmp35 = tl.where(r0_mask, tmp36, _tmp35)
        tmp37 = -tmp30
        tmp38 = tl.broadcast_to(tmp37, [XBLOCK, R0_BLOCK])
        tmp40 = _tmp39 + tmp38
        _tmp39 = tl.where(r0_mask, tmp40, _tmp39)
        tl.store(out_ptr1 + (tl.broadcast_to(r0_0, [XBLOCK, R0_BLOCK])), tmp32, r0_mask)
        tl.store(out_ptr2 + (tl.broadcast_to(r0_0, [XBLOCK, R0_BLOCK])), tmp32, r0_mask)
        tl.store(out_ptr3 + (tl.broadcast_to(r0_0, [XBLOCK, R0_BLOCK])), tmp13, r0_mask)
    tmp35 = tl.sum(_tmp35, 1)[:, None]
    tmp39 = tl.sum(_tmp39, 1)[:, None]
    tl.store(out_ptr4 + (tl.full([XBLOCK, 1], 0, tl.int32)), tmp39, None)
    tmp41 = tl.load(in_ptr3 + (0))
    tmp42 = tl.broadcast_to(tmp41, [XBLOCK, 1])
    tmp43 = tl_math.exp(tmp42)
    tmp44 = tmp35 * tmp43
    tl.debug_barrier()
    tl.store(in_out_ptr0 + (tl.full([XBLOCK, 1], 0, tl.int32)), tmp44, None)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel'],
    {'XBLOCK': 256, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 2, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_add_3(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 6144
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (x0), xmask)
    tmp1 = tl.load(in_ptr0 + (x0), xmask)
    tmp2 = tmp0 + tmp1
    tl.store(in_out_ptr0 + (x0), tmp2, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel'],
    {'XBLOCK': 256, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 2, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_add_expm1_mul_neg_4(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 24576
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (x0), None)
    tmp2 = tl.load(in_ptr0 + (x0), None)
    tmp1 = -tmp0
    tmp3 = -tmp2
    tmp4 = libdevice.expm1(tmp3)
    tmp5 = 1.0
    tmp6 = tmp4 + tmp5
    tmp7 = tmp1 * tmp6
    tmp8 = -tmp7
    tl.store(in_out_ptr0 + (x0), tmp8, None)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 2, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__softmax__softmax_backward_data_bitwise_not_masked_fill_mul_sum_5(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 5120
    r0_numel = 24
    R0_BLOCK: tl.constexpr = 32
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_3 = r0_index
    x0 = (xindex % 4)
    x2 = xindex // 320
    x4 = xindex
    x5 = xindex // 4
    tmp0 = tl.load(in_ptr0 + (1536 + r0_3 + 24*x0 + 96*x2), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
    tmp1 = tl.load(in_ptr1 + (307200 + r0_3 + 24*x4), xmask & r0_mask, other=0.0)
    tmp7 = tl.load(in_ptr2 + (3200 + x5), xmask, eviction_policy='evict_last')
    tmp11 = tl.load(in_ptr3 + (12800 + x4), xmask, eviction_policy='evict_last')
    tmp14 = tl.load(in_ptr4 + (x0 + 4*x2), xmask, eviction_policy='evict_last')
    tmp17 = tl.load(in_ptr5 + (x0 + 4*x2), xmask, eviction_policy='evict_last')
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tmp8 = 0.0
    tmp9 = tmp7 > tmp8
    tmp10 = tmp9 == 0
    tmp12 = -3.4028234663852886e+38
    tmp13 = tl.where(tmp10, tmp12, tmp11)
    tmp15 = tmp13 - tmp14
    tmp16 = tl_math.exp(tmp15)
    tmp18 = (tmp16 / tmp17)
    tmp19 = tmp6 * tmp18
    tl.debug_barrier()
    tl.store(in_out_ptr0 + (x4), tmp19, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel', 'r0_numel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused__softmax_backward_data_6(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 64
    r0_numel = 80
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x0 = (xindex % 4)
    x1 = xindex // 4
    _tmp2 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = tl.load(in_ptr0 + (x0 + 4*r0_2 + 320*x1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp3 = _tmp2 + tmp1
        _tmp2 = tl.where(r0_mask & xmask, tmp3, _tmp2)
    tmp2 = tl.sum(_tmp2, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp2, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 2, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__softmax__softmax_backward_data_bitwise_not_masked_fill_mul_sum_7(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6272
    r0_numel = 24
    R0_BLOCK: tl.constexpr = 32
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_3 = r0_index
    x0 = (xindex % 4)
    x2 = xindex // 1568
    x4 = xindex
    x5 = xindex // 4
    tmp0 = tl.load(in_ptr0 + (r0_3 + 24*x0 + 96*x2), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
    tmp1 = tl.load(in_ptr1 + (r0_3 + 24*x4), xmask & r0_mask, other=0.0)
    tmp7 = tl.load(in_ptr2 + (x5), xmask, eviction_policy='evict_last')
    tmp11 = tl.load(in_ptr3 + (x4), xmask, eviction_policy='evict_last')
    tmp14 = tl.load(in_ptr4 + (x0 + 4*x2), xmask, eviction_policy='evict_last')
    tmp17 = tl.load(in_ptr5 + (x0 + 4*x2), xmask, eviction_policy='evict_last')
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tmp8 = 0.0
    tmp9 = tmp7 > tmp8
    tmp10 = tmp9 == 0
    tmp12 = -3.4028234663852886e+38
    tmp13 = tl.where(tmp10, tmp12, tmp11)
    tmp15 = tmp13 - tmp14
    tmp16 = tl_math.exp(tmp15)
    tmp18 = (tmp16 / tmp17)
    tmp19 = tmp6 * tmp18
    tl.debug_barrier()
    tl.store(in_out_ptr0 + (x4), tmp19, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused__softmax_backward_data_8(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 64
    r0_numel = 98
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x0 = (xindex % 4)
    x1 = xindex // 4
    _tmp2 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = tl.load(in_ptr0 + (x0 + 4*r0_2 + 392*x1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp3 = _tmp2 + tmp1
        _tmp2 = tl.where(r0_mask & xmask, tmp3, _tmp2)
    tmp2 = tl.sum(_tmp2, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp2, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 16, 'num_warps': 1, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__softmax_backward_data_9(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 16
    r0_numel = 4
    R0_BLOCK: tl.constexpr = 4
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x0 = (xindex % 4)
    x1 = xindex // 4
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 4*r0_2 + 16*x1), xmask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(xmask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp4, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 2, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__softmax__softmax_backward_data_bitwise_not_masked_fill_mul_sum_10(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6528
    r0_numel = 24
    R0_BLOCK: tl.constexpr = 32
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_3 = r0_index
    x0 = (xindex % 4)
    x2 = xindex // 544
    x4 = xindex
    x5 = xindex // 4
    tmp0 = tl.load(in_ptr0 + (384 + r0_3 + 24*x0 + 96*x2), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
    tmp1 = tl.load(in_ptr1 + (150528 + r0_3 + 24*x4), xmask & r0_mask, other=0.0)
    tmp7 = tl.load(in_ptr2 + (1568 + x5), xmask, eviction_policy='evict_last')
    tmp11 = tl.load(in_ptr3 + (6272 + x4), xmask, eviction_policy='evict_last')
    tmp14 = tl.load(in_ptr4 + (x0 + 4*x2), xmask, eviction_policy='evict_last')
    tmp17 = tl.load(in_ptr5 + (x0 + 4*x2), xmask, eviction_policy='evict_last')
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tmp8 = 0.0
    tmp9 = tmp7 > tmp8
    tmp10 = tmp9 == 0
    tmp12 = -3.4028234663852886e+38
    tmp13 = tl.where(tmp10, tmp12, tmp11)
    tmp15 = tmp13 - tmp14
    tmp16 = tl_math.exp(tmp15)
    tmp18 = (tmp16 / tmp17)
    tmp19 = tmp6 * tmp18
    tl.debug_barrier()
    tl.store(in_out_ptr0 + (x4), tmp19, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused__softmax_backward_data_11(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 96
    r0_numel = 68
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x0 = (xindex % 4)
    x1 = xindex // 4
    _tmp2 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = tl.load(in_ptr0 + (x0 + 4*r0_2 + 272*x1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp3 = _tmp2 + tmp1
        _tmp2 = tl.where(r0_mask & xmask, tmp3, _tmp2)
    tmp2 = tl.sum(_tmp2, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp2, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 64, 'num_warps': 1, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__softmax_backward_data_12(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 48
    r0_numel = 2
    R0_BLOCK: tl.constexpr = 2
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x0 = (xindex % 4)
    x1 = xindex // 4
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 4*r0_2 + 8*x1), xmask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(xmask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp4, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 2, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__softmax__softmax_backward_data_bitwise_not_masked_fill_mul_sum_13(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 7168
    r0_numel = 24
    R0_BLOCK: tl.constexpr = 32
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_3 = r0_index
    x0 = (xindex % 4)
    x2 = xindex // 224
    x4 = xindex
    x5 = xindex // 4
    tmp0 = tl.load(in_ptr0 + (3072 + r0_3 + 24*x0 + 96*x2), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
    tmp1 = tl.load(in_ptr1 + (430080 + r0_3 + 24*x4), xmask & r0_mask, other=0.0)
    tmp7 = tl.load(in_ptr2 + (4480 + x5), xmask, eviction_policy='evict_last')
    tmp11 = tl.load(in_ptr3 + (17920 + x4), xmask, eviction_policy='evict_last')
    tmp14 = tl.load(in_ptr4 + (x0 + 4*x2), xmask, eviction_policy='evict_last')
    tmp17 = tl.load(in_ptr5 + (x0 + 4*x2), xmask, eviction_policy='evict_last')
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tmp8 = 0.0
    tmp9 = tmp7 > tmp8
    tmp10 = tmp9 == 0
    tmp12 = -3.4028234663852886e+38
    tmp13 = tl.where(tmp10, tmp12, tmp11)
    tmp15 = tmp13 - tmp14
    tmp16 = tl_math.exp(tmp15)
    tmp18 = (tmp16 / tmp17)
    tmp19 = tmp6 * tmp18
    tl.debug_barrier()
    tl.store(in_out_ptr0 + (x4), tmp19, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__softmax_backward_data_14(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 128
    r0_numel = 56
    R0_BLOCK: tl.constexpr = 64
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x0 = (xindex % 4)
    x1 = xindex // 4
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 4*r0_2 + 224*x1), xmask & r0_mask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(r0_mask & xmask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp4, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'in_ptr6': '*fp32', 'in_ptr7': '*fp32', 'in_ptr8': '*fp32', 'in_ptr9': '*fp32', 'in_ptr10': '*fp32', 'in_ptr11': '*fp32', 'in_ptr12': '*fp32', 'in_ptr13': '*fp32', 'in_ptr14': '*fp32', 'in_ptr15': '*fp32', 'in_ptr16': '*fp32', 'in_ptr17': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'in_ptr6', 'in_ptr7', 'in_ptr8', 'in_ptr9', 'in_ptr10', 'in_ptr11', 'in_ptr12', 'in_ptr13', 'in_ptr14', 'in_ptr15', 'in_ptr16', 'in_ptr17', 'xnumel'],
    {'XBLOCK': 256, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 2, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_add_slice_backward_15(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, in_ptr6, in_ptr7, in_ptr8, in_ptr9, in_ptr10, in_ptr11, in_ptr12, in_ptr13, in_ptr14, in_ptr15, in_ptr16, in_ptr17, xnumel, XBLOCK : tl.constexpr):
    xnumel = 25088
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x1 = xindex // 4
    x0 = (xindex % 4)
    x2 = xindex
    tmp0 = x1
    tmp1 = tl.full([1], 4480, tl.int64)
    tmp2 = tmp0 >= tmp1
    tmp3 = tmp2.to(tl.int1)
    tmp4 = tl.load(in_ptr0 + (4480 + 56*(((((-4480) + x1) // 56) % 32)) + ((x1 % 56))), xmask & tmp3, eviction_policy='evict_last', other=0.0)
    tmp5 = 0.0
    tmp6 = tmp4 > tmp5
    tmp7 = tmp6 == 0
    tmp8 = tl.load(in_ptr1 + (17920 + x0 + 4*((x1 % 56)) + 224*(((((-4480) + x1) // 56) % 32))), xmask & tmp3, other=0.0)
    tmp9 = -3.4028234663852886e+38
    tmp10 = tl.where(tmp7, tmp9, tmp8)
    tmp11 = tl.load(in_ptr2 + (x0 + 4*(((((-4480) + x1) // 56) % 32))), xmask & tmp3, other=0.0)
    tmp12 = tmp10 - tmp11
    tmp13 = tl_math.exp(tmp12)
    tmp14 = tl.load(in_ptr3 + (x0 + 4*(((((-4480) + x1) // 56) % 32))), xmask & tmp3, other=0.0)
    tmp15 = (tmp13 / tmp14)
    tmp16 = -tmp15
    tmp17 = tl.load(in_ptr4 + (x0 + 4*(((((-4480) + x1) // 56) % 32))), xmask & tmp3, other=0.0)
    tmp18 = tl.load(in_ptr5 + (x0 + 4*((x1 % 56)) + 224*(((((-4480) + x1) // 56) % 32))), xmask & tmp3, other=0.0)
    tmp19 = libdevice.fma(tmp16, tmp17, tmp18)
    tmp20 = tl.where(tmp7, tmp5, tmp19)
    tmp21 = tl.full(tmp20.shape, 0.0, tmp20.dtype)
    tmp22 = tl.where(tmp3, tmp20, tmp21)
    tmp23 = 0.0
    tmp24 = tl.where(tmp2, tmp22, tmp23)
    tmp25 = tl.full([1], 3200, tl.int64)
    tmp26 = tmp0 >= tmp25
    tmp27 = tmp0 < tmp1
    tmp28 = tmp26 & tmp27
    tmp29 = tmp28.to(tl.int1)
    tmp30 = tl.load(in_ptr0 + (3200 + 80*(((((-3200) + x1) // 80) % 16)) + ((x1 % 80))), xmask & tmp29, eviction_policy='evict_last', other=0.0)
    tmp31 = 0.0
    tmp32 = tmp30 > tmp31
    tmp33 = tmp32 == 0
    tmp34 = tl.load(in_ptr1 + (12800 + x0 + 4*((x1 % 80)) + 320*(((((-3200) + x1) // 80) % 16))), xmask & tmp29, other=0.0)
    tmp35 = -3.4028234663852886e+38
    tmp36 = tl.where(tmp33, tmp35, tmp34)
    tmp37 = tl.load(in_ptr6 + (x0 + 4*(((((-3200) + x1) // 80) % 16))), xmask & tmp29, other=0.0)
    tmp38 = tmp36 - tmp37
    tmp39 = tl_math.exp(tmp38)
    tmp40 = tl.load(in_ptr7 + (x0 + 4*(((((-3200) + x1) // 80) % 16))), xmask & tmp29, other=0.0)
    tmp41 = (tmp39 / tmp40)
    tmp42 = -tmp41
    tmp43 = tl.load(in_ptr8 + (x0 + 4*(((((-3200) + x1) // 80) % 16))), xmask & tmp29, other=0.0)
    tmp44 = tl.load(in_ptr9 + (x0 + 4*((x1 % 80)) + 320*(((((-3200) + x1) // 80) % 16))), xmask & tmp29, other=0.0)
    tmp45 = libdevice.fma(tmp42, tmp43, tmp44)
    tmp46 = tl.where(tmp33, tmp31, tmp45)
    tmp47 = tl.full(tmp46.shape, 0.0, tmp46.dtype)
    tmp48 = tl.where(tmp29, tmp46, tmp47)
    tmp49 = tl.where(tmp28, tmp48, tmp23)
    tmp50 = tmp24 + tmp49
    tmp51 = tl.full([1], 1568, tl.int64)
    tmp52 = tmp0 >= tmp51
    tmp53 = tmp0 < tmp25
    tmp54 = tmp52 & tmp53
    tmp55 = tmp54.to(tl.int1)
    tmp56 = tl.load(in_ptr0 + (1568 + ((((-1568) + x1) % 1632))), xmask & tmp55, eviction_policy='evict_last', other=0.0)
    tmp57 = 0.0
    tmp58 = tmp56 > tmp57
    tmp59 = tmp58 == 0
    tmp60 = tl.load(in_ptr1 + (6272 + x0 + 4*((((-1568) + x1) % 1632))), xmask & tmp55, other=0.0)
    tmp61 = -3.4028234663852886e+38
    tmp62 = tl.where(tmp59, tmp61, tmp60)
    tmp63 = tl.load(in_ptr10 + (x0 + 4*(((((-1568) + x1) // 136) % 12))), xmask & tmp55, other=0.0)
    tmp64 = tmp62 - tmp63
    tmp65 = tl_math.exp(tmp64)
    tmp66 = tl.load(in_ptr11 + (x0 + 4*(((((-1568) + x1) // 136) % 12))), xmask & tmp55, other=0.0)
    tmp67 = (tmp65 / tmp66)
    tmp68 = -tmp67
    tmp69 = tl.load(in_ptr12 + (x0 + 4*(((((-1568) + x1) // 136) % 12))), xmask & tmp55, other=0.0)
    tmp70 = tl.load(in_ptr13 + (x0 + 4*((((-1568) + x1) % 1632))), xmask & tmp55, other=0.0)
    tmp71 = libdevice.fma(tmp68, tmp69, tmp70)
    tmp72 = tl.where(tmp59, tmp57, tmp71)
    tmp73 = tl.full(tmp72.shape, 0.0, tmp72.dtype)
    tmp74 = tl.where(tmp55, tmp72, tmp73)
    tmp75 = tl.where(tmp54, tmp74, tmp23)
    tmp76 = tmp50 + tmp75
    tmp77 = tmp0 < tmp51
    tmp78 = tmp77.to(tl.int1)
    tmp79 = tl.load(in_ptr0 + (((x2 // 4) % 1568)), xmask & tmp78, eviction_policy='evict_last', other=0.0)
    tmp80 = 0.0
    tmp81 = tmp79 > tmp80
    tmp82 = tmp81 == 0
    tmp83 = tl.load(in_ptr1 + (x0 + 4*((x1 % 1568))), xmask & tmp78, other=0.0)
    tmp84 = -3.4028234663852886e+38
    tmp85 = tl.where(tmp82, tmp84, tmp83)
    tmp86 = tl.load(in_ptr14 + (x0 + 4*(((x1 // 392) % 4))), xmask & tmp78, other=0.0)
    tmp87 = tmp85 - tmp86
    tmp88 = tl_math.exp(tmp87)
    tmp89 = tl.load(in_ptr15 + (x0 + 4*(((x1 // 392) % 4))), xmask & tmp78, other=0.0)
    tmp90 = (tmp88 / tmp89)
    tmp91 = -tmp90
    tmp92 = tl.load(in_ptr16 + (x0 + 4*(((x1 // 392) % 4))), xmask & tmp78, other=0.0)
    tmp93 = tl.load(in_ptr17 + (x0 + 4*((x1 % 1568))), xmask & tmp78, other=0.0)
    tmp94 = libdevice.fma(tmp91, tmp92, tmp93)
    tmp95 = tl.where(tmp82, tmp80, tmp94)
    tmp96 = tl.full(tmp95.shape, 0.0, tmp95.dtype)
    tmp97 = tl.where(tmp78, tmp95, tmp96)
    tmp98 = tl.where(tmp77, tmp97, tmp23)
    tmp99 = tmp76 + tmp98
    tl.store(in_out_ptr0 + (x2), tmp99, xmask)


@kernel(
    {'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_embedding_dense_backward_16(out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 86016
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = xindex
    tmp0 = 0.0
    tl.store(out_ptr0 + (x0), tmp0, None)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*i64', 'in_ptr2': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused__log_softmax__log_softmax_backward_data_nll_loss_backward_nll_loss_forward_scalar_tensor_17(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, xnumel, XBLOCK : tl.constexpr):
    xnumel = 168000
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x2 = xindex
    x1 = xindex // 4
    x0 = (xindex % 4)
    tmp0 = tl.load(in_ptr0 + (x2), xmask)
    tmp1 = tl.load(in_ptr0 + (4*x1), xmask, eviction_policy='evict_last')
    tmp2 = tl.load(in_ptr0 + (1 + 4*x1), xmask, eviction_policy='evict_last')
    tmp4 = tl.load(in_ptr0 + (2 + 4*x1), xmask, eviction_policy='evict_last')
    tmp6 = tl.load(in_ptr0 + (3 + 4*x1), xmask, eviction_policy='evict_last')
    tmp23 = tl.load(in_ptr1 + (x1), xmask, eviction_policy='evict_last')
    tmp32 = tl.load(in_ptr2 + (0))
    tmp33 = tl.broadcast_to(tmp32, [XBLOCK])
    tmp3 = triton_helpers.maximum(tmp1, tmp2)
    tmp5 = triton_helpers.maximum(tmp3, tmp4)
    tmp7 = triton_helpers.maximum(tmp5, tmp6)
    tmp8 = tmp0 - tmp7
    tmp9 = tmp1 - tmp7
    tmp10 = tl_math.exp(tmp9)
    tmp11 = tmp2 - tmp7
    tmp12 = tl_math.exp(tmp11)
    tmp13 = tmp10 + tmp12
    tmp14 = tmp4 - tmp7
    tmp15 = tl_math.exp(tmp14)
    tmp16 = tmp13 + tmp15
    tmp17 = tmp6 - tmp7
    tmp18 = tl_math.exp(tmp17)
    tmp19 = tmp16 + tmp18
    tmp20 = tl_math.log(tmp19)
    tmp21 = tmp8 - tmp20
    tmp22 = tl_math.exp(tmp21)
    tmp24 = tl.full([1], -100, tl.int64)
    tmp25 = tmp23 != tmp24
    tmp26 = tl.full([1], 0, tl.int64)
    tmp27 = tl.where(tmp25, tmp23, tmp26)
    tmp28 = tmp27 == tmp26
    tmp29 = -1.0
    tmp30 = 0.0
    tmp31 = tl.where(tmp28, tmp29, tmp30)
    tmp34 = tl.where(tmp25, tmp33, tmp30)
    tmp35 = tmp31 * tmp34
    tmp36 = tl.full([1], 1, tl.int64)
    tmp37 = tmp27 == tmp36
    tmp38 = tl.where(tmp37, tmp29, tmp30)
    tmp39 = tmp38 * tmp34
    tmp40 = tmp35 + tmp39
    tmp41 = tl.full([1], 2, tl.int64)
    tmp42 = tmp27 == tmp41
    tmp43 = tl.where(tmp42, tmp29, tmp30)
    tmp44 = tmp43 * tmp34
    tmp45 = tmp40 + tmp44
    tmp46 = tl.full([1], 3, tl.int64)
    tmp47 = tmp27 == tmp46
    tmp48 = tl.where(tmp47, tmp29, tmp30)
    tmp49 = tmp48 * tmp34
    tmp50 = tmp45 + tmp49
    tmp51 = tmp22 * tmp50
    tmp52 = x0
    tmp53 = tmp27 == tmp52
    tmp54 = tl.where(tmp53, tmp29, tmp30)
    tmp55 = tmp54 * tmp34
    tmp56 = tmp55 - tmp51
    tl.store(in_out_ptr0 + (x2), tmp56, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'r0_numel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_sum_18(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 1320
    r0_numel = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x1 = xindex // 20
    x0 = (xindex % 20)
    _tmp6 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = r0_2 + 128*x1
        tmp1 = tl.full([1, 1], 8400, tl.int32)
        tmp2 = tmp0 < tmp1
        tmp3 = tmp2.to(tl.int1)
        tmp4 = tl.load(in_ptr0 + (x0 + 20*r0_2 + 2560*x1), xmask & r0_mask & tmp3, eviction_policy='evict_first', other=0.0)
        tmp5 = tl.broadcast_to(tmp4, [XBLOCK, R0_BLOCK])
        tmp7 = _tmp6 + tmp5
        _tmp6 = tl.where(r0_mask & xmask, tmp7, _tmp6)
    tmp6 = tl.sum(_tmp6, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp6, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0'],
    {'XBLOCK': 4, 'R0_BLOCK': 128, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_sum_19(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 20
    r0_numel = 66
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x0 = xindex
    _tmp2 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_1 = r0_index
        tmp0 = tl.load(in_ptr0 + (x0 + 20*r0_1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp3 = _tmp2 + tmp1
        _tmp2 = tl.where(r0_mask & xmask, tmp3, _tmp2)
    tmp2 = tl.sum(_tmp2, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp2, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_softplus_backward_20(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 344064
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), None)
    tmp5 = tl.load(in_out_ptr0 + (x0), None)
    tmp1 = 1.0
    tmp2 = tmp0 * tmp1
    tmp3 = 20.0
    tmp4 = tmp2 > tmp3
    tmp6 = tl_math.exp(tmp2)
    tmp7 = tmp5 * tmp6
    tmp8 = tmp6 + tmp1
    tmp9 = (tmp7 / tmp8)
    tmp10 = tl.where(tmp4, tmp5, tmp9)
    tl.store(in_out_ptr0 + (x0), tmp10, None)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel', 'r0_numel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_sum_21(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 2688
    r0_numel = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x0 = (xindex % 384)
    x1 = xindex // 384
    _tmp2 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = tl.load(in_ptr0 + (x0 + 384*r0_2 + 49152*x1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp3 = _tmp2 + tmp1
        _tmp2 = tl.where(r0_mask & xmask, tmp3, _tmp2)
    tmp2 = tl.sum(_tmp2, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp2, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 64, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_sum_22(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 384
    r0_numel = 7
    R0_BLOCK: tl.constexpr = 8
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 384*r0_1), xmask & r0_mask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(r0_mask & xmask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp4, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_gelu_gelu_backward_23(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 602112
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (x0), None)
    tmp1 = tl.load(in_ptr0 + (x0), None)
    tmp2 = tmp1 * tmp1
    tmp3 = tmp2 * tmp1
    tmp4 = 0.044715
    tmp5 = tmp3 * tmp4
    tmp6 = tmp1 + tmp5
    tmp7 = 0.7978845608028654
    tmp8 = tmp6 * tmp7
    tmp9 = libdevice.tanh(tmp8)
    tmp10 = 1.0
    tmp11 = tmp9 + tmp10
    tmp12 = 0.5
    tmp13 = tmp11 * tmp12
    tmp14 = tmp1 * tmp12
    tmp15 = tmp9 * tmp9
    tmp16 = tmp10 - tmp15
    tmp17 = tmp14 * tmp16
    tmp18 = 0.134145
    tmp19 = tmp2 * tmp18
    tmp20 = tmp19 + tmp10
    tmp21 = tmp20 * tmp7
    tmp22 = tmp17 * tmp21
    tmp23 = tmp13 + tmp22
    tmp24 = tmp0 * tmp23
    tl.store(in_out_ptr0 + (x0), tmp24, None)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel', 'r0_numel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_sum_24(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 4704
    r0_numel = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x0 = (xindex % 96)
    x1 = xindex // 96
    _tmp2 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = tl.load(in_ptr0 + (x0 + 96*r0_2 + 12288*x1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp3 = _tmp2 + tmp1
        _tmp2 = tl.where(r0_mask & xmask, tmp3, _tmp2)
    tmp2 = tl.sum(_tmp2, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp2, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_sum_25(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 96
    r0_numel = 49
    R0_BLOCK: tl.constexpr = 64
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 96*r0_1), xmask & r0_mask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(r0_mask & xmask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp4, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'out_ptr1': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'out_ptr0', 'out_ptr1', 'xnumel', 'r0_numel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_native_layer_norm_backward_26(in_ptr0, in_ptr1, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 4704
    r0_numel = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x0 = (xindex % 96)
    x1 = xindex // 96
    _tmp4 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x3 = xindex
    _tmp7 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = tl.load(in_ptr0 + (x0 + 96*r0_2 + 12288*x1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = tl.load(in_ptr1 + (x0 + 96*r0_2 + 12288*x1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp2 = tmp0 * tmp1
        tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
        tmp5 = _tmp4 + tmp3
        _tmp4 = tl.where(r0_mask & xmask, tmp5, _tmp4)
        tmp6 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp8 = _tmp7 + tmp6
        _tmp7 = tl.where(r0_mask & xmask, tmp8, _tmp7)
    tmp4 = tl.sum(_tmp4, 1)[:, None]
    tmp7 = tl.sum(_tmp7, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp4, xmask)
    tl.store(out_ptr1 + (x3), tmp7, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'in_ptr6': '*fp32', 'in_ptr7': '*fp32', 'in_ptr8': '*fp32', 'in_ptr9': '*fp32', 'in_ptr10': '*fp32', 'in_ptr11': '*fp32', 'in_ptr12': '*fp32', 'in_ptr13': '*fp32', 'in_ptr14': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'in_ptr6', 'in_ptr7', 'in_ptr8', 'in_ptr9', 'in_ptr10', 'in_ptr11', 'in_ptr12', 'in_ptr13', 'in_ptr14', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_add_native_layer_norm_backward_slice_backward_27(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, in_ptr6, in_ptr7, in_ptr8, in_ptr9, in_ptr10, in_ptr11, in_ptr12, in_ptr13, in_ptr14, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6272
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr1 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp7 = tl.load(in_ptr2 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp13 = tl.load(in_out_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp14 = tl.load(in_ptr3 + (x0), xmask, eviction_policy='evict_last')
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tmp8 = tmp2 * tmp7
    tmp9 = tl.broadcast_to(tmp8, [XBLOCK, R0_BLOCK])
    tmp11 = tl.where(r0_mask & xmask, tmp9, 0)
    tmp12 = tl.sum(tmp11, 1)[:, None]
    tmp15 = 96.0
    tmp16 = tmp2 * tmp15
    tmp17 = tmp16 - tmp6
    tmp18 = tmp7 * tmp12
    tmp19 = tmp17 - tmp18
    tmp20 = tmp14 * tmp19
    tmp21 = tmp13 + tmp20
    tmp22 = x0
    tmp23 = tl.full([1, 1], 4480, tl.int64)
    tmp24 = tmp22 >= tmp23
    tmp25 = tmp24.to(tl.int1)
    tmp26 = tl.load(in_ptr4 + (3072 + r0_1 + 96*(((((-4480) + x0) // 56) % 32))), xmask & r0_mask & tmp25, other=0.0)
    tmp27 = tl.load(in_ptr5 + (tl.broadcast_to(4480 + 56*(((((-4480) + x0) // 56) % 32)) + ((x0 % 56)), [XBLOCK, R0_BLOCK])), xmask & r0_mask & tmp25, eviction_policy='evict_last', other=0.0)
    tmp28 = 0.0
    tmp29 = tmp27 > tmp28
    tmp30 = tmp29 == 0
    tmp31 = tl.load(in_ptr6 + (17920 + 4*((x0 % 56)) + 224*(((((-4480) + x0) // 56) % 32)) + (r0_1 // 24)), xmask & r0_mask & tmp25, eviction_policy='evict_last', other=0.0)
    tmp32 = -3.4028234663852886e+38
    tmp33 = tl.where(tmp30, tmp32, tmp31)
    tmp34 = tl.load(in_ptr7 + (4*(((((-4480) + x0) // 56) % 32)) + (r0_1 // 24)), xmask & r0_mask & tmp25, eviction_policy='evict_last', other=0.0)
    tmp35 = tmp33 - tmp34
    tmp36 = tl_math.exp(tmp35)
    tmp37 = tl.load(in_ptr8 + (4*(((((-4480) + x0) // 56) % 32)) + (r0_1 // 24)), xmask & r0_mask & tmp25, eviction_policy='evict_last', other=0.0)
    tmp38 = (tmp36 / tmp37)
    tmp39 = tmp26 * tmp38
    tmp40 = tl.full(tmp39.shape, 0.0, tmp39.dtype)
    tmp41 = tl.where(tmp25, tmp39, tmp40)
    tmp42 = 0.0
    tmp43 = tl.where(tmp24, tmp41, tmp42)
    tmp44 = tmp21 + tmp43
    tmp45 = tl.full([1, 1], 3200, tl.int64)
    tmp46 = tmp22 >= tmp45
    tmp47 = tmp22 < tmp23
    tmp48 = tmp46 & tmp47
    tmp49 = tmp48.to(tl.int1)
    tmp50 = tl.load(in_ptr4 + (1536 + r0_1 + 96*(((((-3200) + x0) // 80) % 16))), xmask & r0_mask & tmp49, other=0.0)
    tmp51 = tl.load(in_ptr5 + (tl.broadcast_to(3200 + 80*(((((-3200) + x0) // 80) % 16)) + ((x0 % 80)), [XBLOCK, R0_BLOCK])), xmask & r0_mask & tmp49, eviction_policy='evict_last', other=0.0)
    tmp52 = 0.0
    tmp53 = tmp51 > tmp52
    tmp54 = tmp53 == 0
    tmp55 = tl.load(in_ptr6 + (12800 + 4*((x0 % 80)) + 320*(((((-3200) + x0) // 80) % 16)) + (r0_1 // 24)), xmask & r0_mask & tmp49, eviction_policy='evict_last', other=0.0)
    tmp56 = -3.4028234663852886e+38
    tmp57 = tl.where(tmp54, tmp56, tmp55)
    tmp58 = tl.load(in_ptr9 + (4*(((((-3200) + x0) // 80) % 16)) + (r0_1 // 24)), xmask & r0_mask & tmp49, eviction_policy='evict_last', other=0.0)
    tmp59 = tmp57 - tmp58
    tmp60 = tl_math.exp(tmp59)
    tmp61 = tl.load(in_ptr10 + (4*(((((-3200) + x0) // 80) % 16)) + (r0_1 // 24)), xmask & r0_mask & tmp49, eviction_policy='evict_last', other=0.0)
    tmp62 = (tmp60 / tmp61)
    tmp63 = tmp50 * tmp62
    tmp64 = tl.full(tmp63.shape, 0.0, tmp63.dtype)
    tmp65 = tl.where(tmp49, tmp63, tmp64)
    tmp66 = tl.where(tmp48, tmp65, tmp42)
    tmp67 = tmp44 + tmp66
    tmp68 = tl.full([1, 1], 1568, tl.int64)
    tmp69 = tmp22 >= tmp68
    tmp70 = tmp22 < tmp45
    tmp71 = tmp69 & tmp70
    tmp72 = tmp71.to(tl.int1)
    tmp73 = tl.load(in_ptr4 + (384 + r0_1 + 96*(((((-1568) + x0) // 136) % 12))), xmask & r0_mask & tmp72, other=0.0)
    tmp74 = tl.load(in_ptr5 + (tl.broadcast_to(1568 + ((((-1568) + x0) % 1632)), [XBLOCK, R0_BLOCK])), xmask & r0_mask & tmp72, eviction_policy='evict_last', other=0.0)
    tmp75 = 0.0
    tmp76 = tmp74 > tmp75
    tmp77 = tmp76 == 0
    tmp78 = tl.load(in_ptr6 + (6272 + 4*((((-1568) + x0) % 1632)) + (r0_1 // 24)), xmask & r0_mask & tmp72, eviction_policy='evict_last', other=0.0)
    tmp79 = -3.4028234663852886e+38
    tmp80 = tl.where(tmp77, tmp79, tmp78)
    tmp81 = tl.load(in_ptr11 + (4*(((((-1568) + x0) // 136) % 12)) + (r0_1 // 24)), xmask & r0_mask & tmp72, eviction_policy='evict_last', other=0.0)
    tmp82 = tmp80 - tmp81
    tmp83 = tl_math.exp(tmp82)
    tmp84 = tl.load(in_ptr12 + (4*(((((-1568) + x0) // 136) % 12)) + (r0_1 // 24)), xmask & r0_mask & tmp72, eviction_policy='evict_last', other=0.0)
    tmp85 = (tmp83 / tmp84)
    tmp86 = tmp73 * tmp85
    tmp87 = tl.full(tmp86.shape, 0.0, tmp86.dtype)
    tmp88 = tl.where(tmp72, tmp86, tmp87)
    tmp89 = tl.where(tmp71, tmp88, tmp42)
    tmp90 = tmp67 + tmp89
    tmp91 = tmp22 < tmp68
    tmp92 = tmp91.to(tl.int1)
    tmp93 = tl.load(in_ptr4 + (r0_1 + 96*(((x0 // 392) % 4))), xmask & r0_mask & tmp92, other=0.0)
    tmp94 = tl.load(in_ptr5 + (tl.broadcast_to((x0 % 1568), [XBLOCK, R0_BLOCK])), xmask & r0_mask & tmp92, eviction_policy='evict_last', other=0.0)
    tmp95 = 0.0
    tmp96 = tmp94 > tmp95
    tmp97 = tmp96 == 0
    tmp98 = tl.load(in_ptr6 + (4*((x0 % 1568)) + (r0_1 // 24)), xmask & r0_mask & tmp92, eviction_policy='evict_last', other=0.0)
    tmp99 = -3.4028234663852886e+38
    tmp100 = tl.where(tmp97, tmp99, tmp98)
    tmp101 = tl.load(in_ptr13 + (4*(((x0 // 392) % 4)) + (r0_1 // 24)), xmask & r0_mask & tmp92, eviction_policy='evict_last', other=0.0)
    tmp102 = tmp100 - tmp101
    tmp103 = tl_math.exp(tmp102)
    tmp104 = tl.load(in_ptr14 + (4*(((x0 // 392) % 4)) + (r0_1 // 24)), xmask & r0_mask & tmp92, eviction_policy='evict_last', other=0.0)
    tmp105 = (tmp103 / tmp104)
    tmp106 = tmp93 * tmp105
    tmp107 = tl.full(tmp106.shape, 0.0, tmp106.dtype)
    tmp108 = tl.where(tmp92, tmp106, tmp107)
    tmp109 = tl.where(tmp91, tmp108, tmp42)
    tmp110 = tmp90 + tmp109
    tl.store(in_out_ptr0 + (r0_1 + 96*x0), tmp110, xmask & r0_mask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_native_layer_norm_backward_28(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6272
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr0 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp7 = tl.load(in_ptr1 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp13 = tl.load(in_ptr2 + (x0), xmask, eviction_policy='evict_last')
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tmp8 = tmp2 * tmp7
    tmp9 = tl.broadcast_to(tmp8, [XBLOCK, R0_BLOCK])
    tmp11 = tl.where(r0_mask & xmask, tmp9, 0)
    tmp12 = tl.sum(tmp11, 1)[:, None]
    tmp14 = 96.0
    tmp15 = tmp2 * tmp14
    tmp16 = tmp15 - tmp6
    tmp17 = tmp7 * tmp12
    tmp18 = tmp16 - tmp17
    tmp19 = tmp13 * tmp18
    tl.store(in_out_ptr0 + (r0_1 + 96*x0), tmp19, xmask & r0_mask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_gelu_gelu_backward_29(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 2408448
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (x0), None)
    tmp1 = tl.load(in_ptr0 + (x0), None)
    tmp2 = tmp1 * tmp1
    tmp3 = tmp2 * tmp1
    tmp4 = 0.044715
    tmp5 = tmp3 * tmp4
    tmp6 = tmp1 + tmp5
    tmp7 = 0.7978845608028654
    tmp8 = tmp6 * tmp7
    tmp9 = libdevice.tanh(tmp8)
    tmp10 = 1.0
    tmp11 = tmp9 + tmp10
    tmp12 = 0.5
    tmp13 = tmp11 * tmp12
    tmp14 = tmp1 * tmp12
    tmp15 = tmp9 * tmp9
    tmp16 = tmp10 - tmp15
    tmp17 = tmp14 * tmp16
    tmp18 = 0.134145
    tmp19 = tmp2 * tmp18
    tmp20 = tmp19 + tmp10
    tmp21 = tmp20 * tmp7
    tmp22 = tmp17 * tmp21
    tmp23 = tmp13 + tmp22
    tmp24 = tmp0 * tmp23
    tl.store(in_out_ptr0 + (x0), tmp24, None)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel', 'r0_numel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_sum_30(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 18816
    r0_numel = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x0 = (xindex % 384)
    x1 = xindex // 384
    _tmp2 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = tl.load(in_ptr0 + (x0 + 384*r0_2 + 49152*x1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp3 = _tmp2 + tmp1
        _tmp2 = tl.where(r0_mask & xmask, tmp3, _tmp2)
    tmp2 = tl.sum(_tmp2, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp2, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_sum_31(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 384
    r0_numel = 49
    R0_BLOCK: tl.constexpr = 64
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 384*r0_1), xmask & r0_mask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(r0_mask & xmask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp4, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_add_native_layer_norm_backward_32(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6272
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr1 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp7 = tl.load(in_ptr2 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp13 = tl.load(in_out_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp14 = tl.load(in_ptr3 + (x0), xmask, eviction_policy='evict_last')
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tmp8 = tmp2 * tmp7
    tmp9 = tl.broadcast_to(tmp8, [XBLOCK, R0_BLOCK])
    tmp11 = tl.where(r0_mask & xmask, tmp9, 0)
    tmp12 = tl.sum(tmp11, 1)[:, None]
    tmp15 = 96.0
    tmp16 = tmp2 * tmp15
    tmp17 = tmp16 - tmp6
    tmp18 = tmp7 * tmp12
    tmp19 = tmp17 - tmp18
    tmp20 = tmp14 * tmp19
    tmp21 = tmp13 + tmp20
    tl.store(in_out_ptr0 + (r0_1 + 96*x0), tmp21, xmask & r0_mask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_33(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 122880
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 80)
    x2 = ((xindex // 1920) % 4)
    x3 = xindex // 7680
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (307200 + x0 + 24*x2 + 96*x1 + 7680*x3), None)
    tl.store(out_ptr0 + (x4), tmp0, None)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_34(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 150528
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 392)
    x2 = ((xindex // 9408) % 4)
    x3 = xindex // 37632
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 24*x2 + 96*x1 + 37632*x3), xmask)
    tl.store(out_ptr0 + (x4), tmp0, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_35(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 156672
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 136)
    x2 = ((xindex // 3264) % 4)
    x3 = xindex // 13056
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (150528 + x0 + 24*x2 + 96*x1 + 13056*x3), xmask)
    tl.store(out_ptr0 + (x4), tmp0, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_36(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 172032
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 56)
    x2 = ((xindex // 1344) % 4)
    x3 = xindex // 5376
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (430080 + x0 + 24*x2 + 96*x1 + 5376*x3), None)
    tl.store(out_ptr0 + (x4), tmp0, None)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__softmax_backward_data_37(in_out_ptr0, in_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 5120
    r0_numel = 80
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (r0_1 + 80*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr0 + (r0_1 + 80*x0), xmask & r0_mask, other=0.0)
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tmp7 = -tmp1
    tmp8 = libdevice.fma(tmp7, tmp6, tmp2)
    tl.store(in_out_ptr0 + (r0_1 + 80*x0), tmp8, xmask & r0_mask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__softmax_backward_data_38(in_out_ptr0, in_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 7168
    r0_numel = 56
    R0_BLOCK: tl.constexpr = 64
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (r0_1 + 56*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr0 + (r0_1 + 56*x0), xmask & r0_mask, other=0.0)
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tmp7 = -tmp1
    tmp8 = libdevice.fma(tmp7, tmp6, tmp2)
    tl.store(in_out_ptr0 + (r0_1 + 56*x0), tmp8, xmask & r0_mask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 2, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__softmax_backward_data_39(in_out_ptr0, in_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6528
    r0_numel = 136
    R0_BLOCK: tl.constexpr = 256
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (r0_1 + 136*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr0 + (r0_1 + 136*x0), xmask & r0_mask, other=0.0)
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tmp7 = -tmp1
    tmp8 = libdevice.fma(tmp7, tmp6, tmp2)
    tl.store(in_out_ptr0 + (r0_1 + 136*x0), tmp8, xmask & r0_mask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel'],
    {'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__softmax_backward_data_40(in_out_ptr0, in_ptr0, xnumel, r0_numel):
    xnumel = 6272
    XBLOCK: tl.constexpr = 1
    r0_numel = 392
    R0_BLOCK: tl.constexpr = 512
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = tl.full([1], xoffset, tl.int32)
    xmask = tl.full([R0_BLOCK], True, tl.int1)
    r0_index = tl.arange(0, R0_BLOCK)[:]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (r0_1 + 392*x0), r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr0 + (r0_1 + 392*x0), r0_mask, other=0.0)
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [R0_BLOCK])
    tmp5 = tl.where(r0_mask, tmp3, 0)
    tmp6 = triton_helpers.promote_to_tensor(tl.sum(tmp5, 0))
    tmp7 = -tmp1
    tmp8 = libdevice.fma(tmp7, tmp6, tmp2)
    tl.store(in_out_ptr0 + (r0_1 + 392*x0), tmp8, r0_mask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'in_ptr6': '*fp32', 'in_ptr7': '*fp32', 'in_ptr8': '*fp32', 'in_ptr9': '*fp32', 'in_ptr10': '*fp32', 'in_ptr11': '*fp32', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'in_ptr6', 'in_ptr7', 'in_ptr8', 'in_ptr9', 'in_ptr10', 'in_ptr11', 'ynumel', 'xnumel'],
    {'XBLOCK': 32, 'YBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 64, 'YBLOCK': 64, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 256, 'YBLOCK': 16, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 16, 'YBLOCK': 256, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'YBLOCK': 2, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 1, 'YBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_add_slice_backward_41(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, in_ptr6, in_ptr7, in_ptr8, in_ptr9, in_ptr10, in_ptr11, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 6272
    xnumel = 288
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[None, :]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    y0 = yindex
    x1 = xindex
    tmp0 = y0
    tmp1 = tl.full([1, 1], 3200, tl.int64)
    tmp2 = tmp0 >= tmp1
    tmp3 = tl.full([1, 1], 4480, tl.int64)
    tmp4 = tmp0 < tmp3
    tmp5 = tmp2 & tmp4
    tmp6 = tmp5.to(tl.int1)
    tmp7 = 16*(x1 // 96) + (((((-3200) + y0) // 80) % 16))
    tmp8 = tl.full([1, 1], 0, tl.int64)
    tmp9 = tmp7 >= tmp8
    tmp10 = tl.full([1, 1], 16, tl.int64)
    tmp11 = tmp7 < tmp10
    tmp12 = tmp11.to(tl.int1)
    tmp13 = tmp12 & tmp6
    tmp14 = tl.load(in_ptr0 + (24*((y0 % 80)) + 1920*(((x1 // 24) % 4)) + 7680*(16*(x1 // 96) + (((((-3200) + y0) // 80) % 16))) + ((x1 % 24))), xmask & ymask & tmp13, eviction_policy='evict_last', other=0.0)
    tmp15 = 0.45180100180492244
    tmp16 = tmp14 * tmp15
    tmp17 = tl.full(tmp16.shape, 0.0, tmp16.dtype)
    tmp18 = tl.where(tmp13, tmp16, tmp17)
    tmp19 = tmp7 >= tmp10
    tmp20 = tl.full([1, 1], 32, tl.int64)
    tmp21 = tmp7 < tmp20
    tmp22 = tmp19 & tmp21
    tmp23 = tmp22.to(tl.int1)
    tmp24 = tmp23 & tmp6
    tmp25 = tl.load(in_ptr1 + (80*((x1 % 96)) + 7680*((-16) + 16*(x1 // 96) + (((((-3200) + y0) // 80) % 16))) + ((y0 % 80))), xmask & ymask & tmp24, eviction_policy='evict_last', other=0.0)
    tmp26 = 0.45180100180492244
    tmp27 = tmp25 * tmp26
    tmp28 = tl.full(tmp27.shape, 0.0, tmp27.dtype)
    tmp29 = tl.where(tmp24, tmp27, tmp28)
    tmp30 = tmp7 >= tmp20
    tmp31 = tl.full([1, 1], 48, tl.int64)
    tmp32 = tmp7 < tmp31
    tmp33 = tmp30.to(tl.int1)
    tmp34 = tmp33 & tmp6
    tmp35 = tl.load(in_ptr2 + (24*((y0 % 80)) + 1920*(((x1 // 24) % 4)) + 7680*((-32) + 16*(x1 // 96) + (((((-3200) + y0) // 80) % 16))) + ((x1 % 24))), xmask & ymask & tmp34, eviction_policy='evict_last', other=0.0)
    tmp36 = tl.where(tmp22, tmp29, tmp35)
    tmp37 = tl.where(tmp11, tmp18, tmp36)
    tmp38 = tl.full(tmp37.shape, 0.0, tmp37.dtype)
    tmp39 = tl.where(tmp6, tmp37, tmp38)
    tmp40 = 0.0
    tmp41 = tl.where(tmp5, tmp39, tmp40)
    tmp42 = tmp0 >= tmp3
    tmp43 = tmp42.to(tl.int1)
    tmp44 = 32*(x1 // 96) + (((((-4480) + y0) // 56) % 32))
    tmp45 = tl.full([1, 1], 0, tl.int64)
    tmp46 = tmp44 >= tmp45
    tmp47 = tl.full([1, 1], 32, tl.int64)
    tmp48 = tmp44 < tmp47
    tmp49 = tmp48.to(tl.int1)
    tmp50 = tmp49 & tmp43
    tmp51 = tl.load(in_ptr3 + (24*((y0 % 56)) + 1344*(((x1 // 24) % 4)) + 5376*(32*(x1 // 96) + (((((-4480) + y0) // 56) % 32))) + ((x1 % 24))), xmask & ymask & tmp50, eviction_policy='evict_last', other=0.0)
    tmp52 = 0.45180100180492244
    tmp53 = tmp51 * tmp52
    tmp54 = tl.full(tmp53.shape, 0.0, tmp53.dtype)
    tmp55 = tl.where(tmp50, tmp53, tmp54)
    tmp56 = tmp44 >= tmp47
    tmp57 = tl.full([1, 1], 64, tl.int64)
    tmp58 = tmp44 < tmp57
    tmp59 = tmp56 & tmp58
    tmp60 = tmp59.to(tl.int1)
    tmp61 = tmp60 & tmp43
    tmp62 = tl.load(in_ptr4 + (56*((x1 % 96)) + 5376*((-32) + 32*(x1 // 96) + (((((-4480) + y0) // 56) % 32))) + ((y0 % 56))), xmask & ymask & tmp61, eviction_policy='evict_last', other=0.0)
    tmp63 = 0.45180100180492244
    tmp64 = tmp62 * tmp63
    tmp65 = tl.full(tmp64.shape, 0.0, tmp64.dtype)
    tmp66 = tl.where(tmp61, tmp64, tmp65)
    tmp67 = tmp44 >= tmp57
    tmp68 = tl.full([1, 1], 96, tl.int64)
    tmp69 = tmp44 < tmp68
    tmp70 = tmp67.to(tl.int1)
    tmp71 = tmp70 & tmp43
    tmp72 = tl.load(in_ptr5 + (24*((y0 % 56)) + 1344*(((x1 // 24) % 4)) + 5376*((-64) + 32*(x1 // 96) + (((((-4480) + y0) // 56) % 32))) + ((x1 % 24))), xmask & ymask & tmp71, eviction_policy='evict_last', other=0.0)
    tmp73 = tl.where(tmp59, tmp66, tmp72)
    tmp74 = tl.where(tmp48, tmp55, tmp73)
    tmp75 = tl.full(tmp74.shape, 0.0, tmp74.dtype)
    tmp76 = tl.where(tmp43, tmp74, tmp75)
    tmp77 = tl.where(tmp42, tmp76, tmp40)
    tmp78 = tmp77 + tmp41
    tmp79 = tl.full([1, 1], 1568, tl.int64)
    tmp80 = tmp0 >= tmp79
    tmp81 = tmp0 < tmp1
    tmp82 = tmp80 & tmp81
    tmp83 = tmp82.to(tl.int1)
    tmp84 = 12*(x1 // 96) + (((((-1568) + y0) // 136) % 12))
    tmp85 = tl.full([1, 1], 0, tl.int64)
    tmp86 = tmp84 >= tmp85
    tmp87 = tl.full([1, 1], 12, tl.int64)
    tmp88 = tmp84 < tmp87
    tmp89 = tmp88.to(tl.int1)
    tmp90 = tmp89 & tmp83
    tmp91 = tl.load(in_ptr6 + (24*((((-1568) + y0) % 136)) + 3264*(((x1 // 24) % 4)) + 13056*(12*(x1 // 96) + (((((-1568) + y0) // 136) % 12))) + ((x1 % 24))), xmask & ymask & tmp90, eviction_policy='evict_last', other=0.0)
    tmp92 = 0.45180100180492244
    tmp93 = tmp91 * tmp92
    tmp94 = tl.full(tmp93.shape, 0.0, tmp93.dtype)
    tmp95 = tl.where(tmp90, tmp93, tmp94)
    tmp96 = tmp84 >= tmp87
    tmp97 = tl.full([1, 1], 24, tl.int64)
    tmp98 = tmp84 < tmp97
    tmp99 = tmp96 & tmp98
    tmp100 = tmp99.to(tl.int1)
    tmp101 = tmp100 & tmp83
    tmp102 = tl.load(in_ptr7 + (136*((x1 % 96)) + 13056*((-12) + 12*(x1 // 96) + (((((-1568) + y0) // 136) % 12))) + ((((-1568) + y0) % 136))), xmask & ymask & tmp101, eviction_policy='evict_last', other=0.0)
    tmp103 = 0.45180100180492244
    tmp104 = tmp102 * tmp103
    tmp105 = tl.full(tmp104.shape, 0.0, tmp104.dtype)
    tmp106 = tl.where(tmp101, tmp104, tmp105)
    tmp107 = tmp84 >= tmp97
    tmp108 = tl.full([1, 1], 36, tl.int64)
    tmp109 = tmp84 < tmp108
    tmp110 = tmp107.to(tl.int1)
    tmp111 = tmp110 & tmp83
    tmp112 = tl.load(in_ptr8 + (24*((((-1568) + y0) % 136)) + 3264*(((x1 // 24) % 4)) + 13056*((-24) + 12*(x1 // 96) + (((((-1568) + y0) // 136) % 12))) + ((x1 % 24))), xmask & ymask & tmp111, eviction_policy='evict_last', other=0.0)
    tmp113 = tl.where(tmp99, tmp106, tmp112)
    tmp114 = tl.where(tmp88, tmp95, tmp113)
    tmp115 = tl.full(tmp114.shape, 0.0, tmp114.dtype)
    tmp116 = tl.where(tmp83, tmp114, tmp115)
    tmp117 = tl.where(tmp82, tmp116, tmp40)
    tmp118 = tmp78 + tmp117
    tmp119 = tmp0 < tmp79
    tmp120 = tmp119.to(tl.int1)
    tmp121 = 4*(x1 // 96) + (((y0 // 392) % 4))
    tmp122 = tl.full([1, 1], 0, tl.int64)
    tmp123 = tmp121 >= tmp122
    tmp124 = tl.full([1, 1], 4, tl.int64)
    tmp125 = tmp121 < tmp124
    tmp126 = tmp125.to(tl.int1)
    tmp127 = tmp126 & tmp120
    tmp128 = tl.load(in_ptr9 + (24*((y0 % 392)) + 9408*(((x1 // 24) % 4)) + 37632*(4*(x1 // 96) + (((y0 // 392) % 4))) + ((x1 % 24))), xmask & ymask & tmp127, eviction_policy='evict_last', other=0.0)
    tmp129 = 0.45180100180492244
    tmp130 = tmp128 * tmp129
    tmp131 = tl.full(tmp130.shape, 0.0, tmp130.dtype)
    tmp132 = tl.where(tmp127, tmp130, tmp131)
    tmp133 = tmp121 >= tmp124
    tmp134 = tl.full([1, 1], 8, tl.int64)
    tmp135 = tmp121 < tmp134
    tmp136 = tmp133 & tmp135
    tmp137 = tmp136.to(tl.int1)
    tmp138 = tmp137 & tmp120
    tmp139 = tl.load(in_ptr10 + (392*((x1 % 96)) + 37632*((-4) + 4*(x1 // 96) + (((y0 // 392) % 4))) + ((y0 % 392))), xmask & ymask & tmp138, eviction_policy='evict_last', other=0.0)
    tmp140 = 0.45180100180492244
    tmp141 = tmp139 * tmp140
    tmp142 = tl.full(tmp141.shape, 0.0, tmp141.dtype)
    tmp143 = tl.where(tmp138, tmp141, tmp142)
    tmp144 = tmp121 >= tmp134
    tmp145 = tl.full([1, 1], 12, tl.int64)
    tmp146 = tmp121 < tmp145
    tmp147 = tmp144.to(tl.int1)
    tmp148 = tmp147 & tmp120
    tmp149 = tl.load(in_ptr11 + (24*((y0 % 392)) + 9408*(((x1 // 24) % 4)) + 37632*((-8) + 4*(x1 // 96) + (((y0 // 392) % 4))) + ((x1 % 24))), xmask & ymask & tmp148, eviction_policy='evict_last', other=0.0)
    tmp150 = tl.where(tmp136, tmp143, tmp149)
    tmp151 = tl.where(tmp125, tmp132, tmp150)
    tmp152 = tl.full(tmp151.shape, 0.0, tmp151.dtype)
    tmp153 = tl.where(tmp120, tmp151, tmp152)
    tmp154 = tl.where(tmp119, tmp153, tmp40)
    tmp155 = tmp118 + tmp154
    tl.debug_barrier()
    tl.store(in_out_ptr0 + (x1 + 288*y0), tmp155, xmask & ymask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*i64', 'out_ptr2': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'out_ptr2', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_add_embedding_dense_backward_native_layer_norm_backward_scalar_tensor_42(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, out_ptr2, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6272
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr1 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp7 = tl.load(in_ptr2 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp13 = tl.load(in_out_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp14 = tl.load(in_ptr3 + (x0), xmask, eviction_policy='evict_last')
    tmp22 = tl.load(in_ptr4 + (x0), xmask, eviction_policy='evict_last')
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tmp8 = tmp2 * tmp7
    tmp9 = tl.broadcast_to(tmp8, [XBLOCK, R0_BLOCK])
    tmp11 = tl.where(r0_mask & xmask, tmp9, 0)
    tmp12 = tl.sum(tmp11, 1)[:, None]
    tmp15 = 96.0
    tmp16 = tmp2 * tmp15
    tmp17 = tmp16 - tmp6
    tmp18 = tmp7 * tmp12
    tmp19 = tmp17 - tmp18
    tmp20 = tmp14 * tmp19
    tmp21 = tmp13 + tmp20
    tmp23 = tl.full([XBLOCK, R0_BLOCK], 896, tl.int32)
    tmp24 = tmp22 + tmp23
    tmp25 = tmp22 < 0
    tmp26 = tl.where(tmp25, tmp24, tmp22)
    tl.device_assert(((0 <= tmp26) & (tmp26 < 896)) | ~(xmask), "index out of bounds: 0 <= tmp26 < 896")
    tmp28 = tl.full([1, 1], -1, tl.int64)
    tmp29 = tmp22 == tmp28
    tmp30 = 0.0
    tmp31 = tl.where(tmp29, tmp30, tmp21)
    tl.store(in_out_ptr0 + (r0_1 + 96*x0), tmp21, xmask & r0_mask)
    tl.atomic_add(out_ptr2 + (tl.broadcast_to(r0_1 + 96*tmp26, [XBLOCK, R0_BLOCK])), tmp31, xmask & r0_mask, sem='relaxed')


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_add_43(in_out_ptr0, in_ptr0, in_ptr1, xnumel, XBLOCK : tl.constexpr):
    xnumel = 86016
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (x0), None)
    tmp1 = tl.load(in_ptr0 + (x0), None)
    tmp3 = tl.load(in_ptr1 + (x0), None)
    tmp2 = tmp0 + tmp1
    tmp4 = tmp2 + tmp3
    tl.store(in_out_ptr0 + (x0), tmp4, None)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'out_ptr1': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'out_ptr1', 'xnumel', 'r0_numel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_sum_44(in_ptr0, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 672
    r0_numel = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x0 = (xindex % 96)
    x1 = xindex // 96
    _tmp2 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = tl.load(in_ptr0 + (x0 + 96*r0_2 + 12288*x1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp3 = _tmp2 + tmp1
        _tmp2 = tl.where(r0_mask & xmask, tmp3, _tmp2)
    tmp2 = tl.sum(_tmp2, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp2, xmask)
    tl.store(out_ptr1 + (x3), tmp2, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 64, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_sum_45(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 96
    r0_numel = 7
    R0_BLOCK: tl.constexpr = 8
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 96*r0_1), xmask & r0_mask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(r0_mask & xmask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp4, xmask)


@kernel(
    {'in_ptr0': '*i1', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_gelu_gelu_backward_scalar_tensor_where_46(in_ptr0, in_ptr1, in_ptr2, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 602112
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x1 = xindex // 96
    x2 = xindex
    tmp0 = tl.load(in_ptr0 + (x1), None, eviction_policy='evict_last')
    tmp1 = tl.load(in_ptr1 + (x2), None)
    tmp4 = tl.load(in_ptr2 + (x2), None)
    tmp2 = 0.0
    tmp3 = tl.where(tmp0, tmp2, tmp1)
    tmp5 = 0.7071067811865476
    tmp6 = tmp4 * tmp5
    tmp7 = libdevice.erf(tmp6)
    tmp8 = 1.0
    tmp9 = tmp7 + tmp8
    tmp10 = 0.5
    tmp11 = tmp9 * tmp10
    tmp12 = tmp4 * tmp4
    tmp13 = -0.5
    tmp14 = tmp12 * tmp13
    tmp15 = tl_math.exp(tmp14)
    tmp16 = 0.3989422804014327
    tmp17 = tmp15 * tmp16
    tmp18 = tmp4 * tmp17
    tmp19 = tmp11 + tmp18
    tmp20 = tmp3 * tmp19
    tl.store(out_ptr0 + (x2), tmp20, None)


@kernel(
    {'in_ptr0': '*i1', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'out_ptr0', 'xnumel', 'r0_numel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_scalar_tensor_sum_where_47(in_ptr0, in_ptr1, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 4704
    r0_numel = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x1 = xindex // 96
    x0 = (xindex % 96)
    _tmp5 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = tl.load(in_ptr0 + (r0_2 + 128*x1), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
        tmp1 = tl.load(in_ptr1 + (x0 + 96*r0_2 + 12288*x1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp2 = 0.0
        tmp3 = tl.where(tmp0, tmp1, tmp2)
        tmp4 = tl.broadcast_to(tmp3, [XBLOCK, R0_BLOCK])
        tmp6 = _tmp5 + tmp4
        _tmp5 = tl.where(r0_mask & xmask, tmp6, _tmp5)
    tmp5 = tl.sum(_tmp5, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp5, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 2, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_mul_sum_48(in_ptr0, in_ptr1, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 107520
    r0_numel = 24
    R0_BLOCK: tl.constexpr = 32
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_3 = r0_index
    x0 = (xindex % 4)
    x2 = xindex // 120
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_3 + 24*x0 + 96*x2), xmask & r0_mask, eviction_policy='evict_last', other=0.0)
    tmp1 = tl.load(in_ptr1 + (r0_3 + 24*x4), xmask & r0_mask, other=0.0)
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tl.store(out_ptr0 + (x4), tmp6, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 2, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__softmax__softmax_backward_data_49(in_ptr0, in_ptr1, in_ptr2, in_ptr3, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 3584
    r0_numel = 30
    R0_BLOCK: tl.constexpr = 32
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_2 = r0_index
    x0 = (xindex % 4)
    x1 = xindex // 4
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 4*r0_2 + 120*x1), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr1 + (x0 + 4*r0_2 + 120*x1), xmask & r0_mask, other=0.0)
    tmp2 = tl.load(in_ptr2 + (x3), xmask, eviction_policy='evict_last')
    tmp5 = tl.load(in_ptr3 + (x3), xmask, eviction_policy='evict_last')
    tmp3 = tmp1 - tmp2
    tmp4 = tl_math.exp(tmp3)
    tmp6 = (tmp4 / tmp5)
    tmp7 = tmp0 * tmp6
    tmp8 = tl.broadcast_to(tmp7, [XBLOCK, R0_BLOCK])
    tmp10 = tl.where(r0_mask & xmask, tmp8, 0)
    tmp11 = tl.sum(tmp10, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp11, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused__softmax__softmax_backward_data_50(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, xnumel, XBLOCK : tl.constexpr):
    xnumel = 107520
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x3 = xindex
    x0 = (xindex % 4)
    x2 = xindex // 120
    tmp0 = tl.load(in_ptr0 + (x3), xmask)
    tmp1 = tl.load(in_ptr1 + (x0 + 4*x2), xmask, eviction_policy='evict_last')
    tmp4 = tl.load(in_ptr2 + (x0 + 4*x2), xmask, eviction_policy='evict_last')
    tmp7 = tl.load(in_ptr3 + (x0 + 4*x2), xmask, eviction_policy='evict_last')
    tmp8 = tl.load(in_out_ptr0 + (x3), xmask)
    tmp2 = tmp0 - tmp1
    tmp3 = tl_math.exp(tmp2)
    tmp5 = (tmp3 / tmp4)
    tmp6 = -tmp5
    tmp9 = tmp8 * tmp5
    tmp10 = libdevice.fma(tmp6, tmp7, tmp9)
    tl.store(in_out_ptr0 + (x3), tmp10, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'in_ptr4': '*fp32', 'in_ptr5': '*fp32', 'in_ptr6': '*fp32', 'in_ptr7': '*fp32', 'in_ptr8': '*fp32', 'in_ptr9': '*fp32', 'out_ptr0': '*fp32', 'out_ptr3': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'in_ptr4', 'in_ptr5', 'in_ptr6', 'in_ptr7', 'in_ptr8', 'in_ptr9', 'out_ptr0', 'out_ptr3', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_add_native_layer_norm_backward_slice_backward_51(in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, in_ptr6, in_ptr7, in_ptr8, in_ptr9, out_ptr0, out_ptr3, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 35280
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    x1 = xindex // 30
    r0_2 = r0_index
    x3 = xindex
    tmp25 = tl.load(in_ptr7 + (r0_2), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp31 = tl.load(in_ptr8 + (r0_2 + 96*x3), r0_mask & xmask, other=0.0)
    tmp37 = tl.load(in_ptr9 + (x3), xmask, eviction_policy='evict_last')
    tmp0 = x1
    tmp1 = tl.full([1, 1], 896, tl.int64)
    tmp2 = tmp0 >= tmp1
    tmp3 = tmp2.to(tl.int1)
    tmp4 = tl.load(in_ptr0 + ((-2580480) + r0_2 + 96*x3), r0_mask & xmask & tmp3, other=0.0)
    tmp5 = 0.0
    tmp6 = tl.where(tmp2, tmp4, tmp5)
    tmp7 = tmp0 < tmp1
    tmp8 = tmp7.to(tl.int1)
    tmp9 = tl.load(in_ptr1 + (r0_2 + 96*x3), r0_mask & xmask & tmp8, other=0.0)
    tmp10 = tl.load(in_ptr2 + (r0_2 + 96*x1), xmask & r0_mask & tmp8, eviction_policy='evict_last', other=0.0)
    tmp11 = tl.load(in_ptr3 + (4*x3 + (r0_2 // 24)), r0_mask & xmask & tmp8, eviction_policy='evict_last', other=0.0)
    tmp12 = tl.load(in_ptr4 + (4*x1 + (r0_2 // 24)), xmask & r0_mask & tmp8, eviction_policy='evict_last', other=0.0)
    tmp13 = tmp11 - tmp12
    tmp14 = tl_math.exp(tmp13)
    tmp15 = tl.load(in_ptr5 + (4*x1 + (r0_2 // 24)), xmask & r0_mask & tmp8, eviction_policy='evict_last', other=0.0)
    tmp16 = (tmp14 / tmp15)
    tmp17 = tmp10 * tmp16
    tmp18 = tmp9 + tmp17
    tmp19 = tl.load(in_ptr6 + (r0_2 + 96*x3), r0_mask & xmask & tmp8, other=0.0)
    tmp20 = tmp18 + tmp19
    tmp21 = tl.full(tmp20.shape, 0.0, tmp20.dtype)
    tmp22 = tl.where(tmp8, tmp20, tmp21)
    tmp23 = tl.where(tmp7, tmp22, tmp5)
    tmp24 = tmp6 + tmp23
    tmp26 = tmp24 * tmp25
    tmp27 = tl.broadcast_to(tmp26, [XBLOCK, R0_BLOCK])
    tmp29 = tl.where(r0_mask & xmask, tmp27, 0)
    tmp30 = tl.sum(tmp29, 1)[:, None]
    tmp32 = tmp26 * tmp31
    tmp33 = tl.broadcast_to(tmp32, [XBLOCK, R0_BLOCK])
    tmp35 = tl.where(r0_mask & xmask, tmp33, 0)
    tmp36 = tl.sum(tmp35, 1)[:, None]
    tmp38 = 96.0
    tmp39 = tmp26 * tmp38
    tmp40 = tmp39 - tmp30
    tmp41 = tmp31 * tmp36
    tmp42 = tmp40 - tmp41
    tmp43 = tmp37 * tmp42
    tl.store(out_ptr0 + (r0_2 + 96*x3), tmp24, r0_mask & xmask)
    tl.store(out_ptr3 + (r0_2 + 96*x3), tmp43, r0_mask & xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'out_ptr1': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'out_ptr0', 'out_ptr1', 'xnumel', 'r0_numel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_native_layer_norm_backward_52(in_ptr0, in_ptr1, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 26496
    r0_numel = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x1 = xindex // 96
    x0 = (xindex % 96)
    _tmp10 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x3 = xindex
    _tmp13 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = r0_2 + 128*x1
        tmp1 = tl.full([1, 1], 35280, tl.int32)
        tmp2 = tmp0 < tmp1
        tmp3 = tmp2.to(tl.int1)
        tmp4 = tl.load(in_ptr0 + (x0 + 96*(((r0_2 + 128*x1) % 35280))), xmask & r0_mask & tmp3, eviction_policy='evict_first', other=0.0)
        tmp5 = tl.load(in_ptr1 + (x0 + 96*(((r0_2 + 128*x1) % 35280))), xmask & r0_mask & tmp3, eviction_policy='evict_first', other=0.0)
        tmp6 = tmp4 * tmp5
        tmp7 = tl.full(tmp6.shape, 0, tmp6.dtype)
        tmp8 = tl.where(tmp3, tmp6, tmp7)
        tmp9 = tl.broadcast_to(tmp8, [XBLOCK, R0_BLOCK])
        tmp11 = _tmp10 + tmp9
        _tmp10 = tl.where(r0_mask & xmask, tmp11, _tmp10)
        tmp12 = tl.broadcast_to(tmp4, [XBLOCK, R0_BLOCK])
        tmp14 = _tmp13 + tmp12
        _tmp13 = tl.where(r0_mask & xmask, tmp14, _tmp13)
    tmp10 = tl.sum(_tmp10, 1)[:, None]
    tmp13 = tl.sum(_tmp13, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp10, xmask)
    tl.store(out_ptr1 + (x3), tmp13, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1, 'R0_BLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_native_layer_norm_backward_53(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 96
    r0_numel = 276
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x0 = xindex
    _tmp2 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_1 = r0_index
        tmp0 = tl.load(in_ptr0 + (x0 + 96*r0_1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp3 = _tmp2 + tmp1
        _tmp2 = tl.where(r0_mask & xmask, tmp3, _tmp2)
    tmp2 = tl.sum(_tmp2, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp2, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel', 'r0_numel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_sum_54(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 26496
    r0_numel = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x1 = xindex // 96
    x0 = (xindex % 96)
    _tmp6 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = r0_2 + 128*x1
        tmp1 = tl.full([1, 1], 35280, tl.int32)
        tmp2 = tmp0 < tmp1
        tmp3 = tmp2.to(tl.int1)
        tmp4 = tl.load(in_ptr0 + (x0 + 96*r0_2 + 12288*x1), xmask & r0_mask & tmp3, eviction_policy='evict_first', other=0.0)
        tmp5 = tl.broadcast_to(tmp4, [XBLOCK, R0_BLOCK])
        tmp7 = _tmp6 + tmp5
        _tmp6 = tl.where(r0_mask & xmask, tmp7, _tmp6)
    tmp6 = tl.sum(_tmp6, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp6, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_gelu_gelu_backward_55(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 13547520
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (x0), xmask)
    tmp1 = tl.load(in_ptr0 + (x0), xmask)
    tmp2 = tmp1 * tmp1
    tmp3 = tmp2 * tmp1
    tmp4 = 0.044715
    tmp5 = tmp3 * tmp4
    tmp6 = tmp1 + tmp5
    tmp7 = 0.7978845608028654
    tmp8 = tmp6 * tmp7
    tmp9 = libdevice.tanh(tmp8)
    tmp10 = 1.0
    tmp11 = tmp9 + tmp10
    tmp12 = 0.5
    tmp13 = tmp11 * tmp12
    tmp14 = tmp1 * tmp12
    tmp15 = tmp9 * tmp9
    tmp16 = tmp10 - tmp15
    tmp17 = tmp14 * tmp16
    tmp18 = 0.134145
    tmp19 = tmp2 * tmp18
    tmp20 = tmp19 + tmp10
    tmp21 = tmp20 * tmp7
    tmp22 = tmp17 * tmp21
    tmp23 = tmp13 + tmp22
    tmp24 = tmp0 * tmp23
    tl.store(in_out_ptr0 + (x0), tmp24, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel', 'r0_numel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_sum_56(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 105984
    r0_numel = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x1 = xindex // 384
    x0 = (xindex % 384)
    _tmp6 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = r0_2 + 128*x1
        tmp1 = tl.full([1, 1], 35280, tl.int32)
        tmp2 = tmp0 < tmp1
        tmp3 = tmp2.to(tl.int1)
        tmp4 = tl.load(in_ptr0 + (x0 + 384*r0_2 + 49152*x1), xmask & r0_mask & tmp3, eviction_policy='evict_first', other=0.0)
        tmp5 = tl.broadcast_to(tmp4, [XBLOCK, R0_BLOCK])
        tmp7 = _tmp6 + tmp5
        _tmp6 = tl.where(r0_mask & xmask, tmp7, _tmp6)
    tmp6 = tl.sum(_tmp6, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp6, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1, 'R0_BLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_sum_57(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 384
    r0_numel = 276
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x0 = xindex
    _tmp2 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_1 = r0_index
        tmp0 = tl.load(in_ptr0 + (x0 + 384*r0_1), xmask & r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp3 = _tmp2 + tmp1
        _tmp2 = tl.where(r0_mask & xmask, tmp3, _tmp2)
    tmp2 = tl.sum(_tmp2, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp2, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'in_ptr1', 'in_ptr2', 'in_ptr3', 'xnumel', 'r0_numel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_add_native_layer_norm_backward_58(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 35280
    r0_numel = 96
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr1 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp7 = tl.load(in_ptr2 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp13 = tl.load(in_out_ptr0 + (r0_1 + 96*x0), xmask & r0_mask, other=0.0)
    tmp14 = tl.load(in_ptr3 + (x0), xmask, eviction_policy='evict_last')
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tmp8 = tmp2 * tmp7
    tmp9 = tl.broadcast_to(tmp8, [XBLOCK, R0_BLOCK])
    tmp11 = tl.where(r0_mask & xmask, tmp9, 0)
    tmp12 = tl.sum(tmp11, 1)[:, None]
    tmp15 = 96.0
    tmp16 = tmp2 * tmp15
    tmp17 = tmp16 - tmp6
    tmp18 = tmp7 * tmp12
    tmp19 = tmp17 - tmp18
    tmp20 = tmp14 * tmp19
    tmp21 = tmp13 + tmp20
    tl.store(in_out_ptr0 + (r0_1 + 96*x0), tmp21, xmask & r0_mask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_59(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 3386880
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 30)
    x2 = ((xindex // 720) % 4)
    x3 = xindex // 2880
    x4 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 24*x2 + 96*x1 + 2880*x3), xmask)
    tl.store(out_ptr0 + (x4), tmp0, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'out_ptr1': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'out_ptr1', 'xnumel'],
    {'XBLOCK': 1, 'num_warps': 1, 'num_stages': 1},
    {'XBLOCK': 8, 'num_warps': 2, 'num_stages': 1},
    {'XBLOCK': 32, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 128, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused__softmax_backward_data_60(in_ptr0, in_ptr1, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 141120
    r0_numel = 30
    R0_BLOCK: tl.constexpr = 32
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    x2 = (xindex % 120)
    x3 = xindex // 120
    tmp0 = tl.load(in_ptr0 + (r0_1 + 30*x0), xmask & r0_mask, other=0.0)
    tmp1 = tl.load(in_ptr1 + (r0_1 + 30*x0), xmask & r0_mask, other=0.0)
    tmp2 = tmp0 * tmp1
    tmp3 = tl.broadcast_to(tmp2, [XBLOCK, R0_BLOCK])
    tmp5 = tl.where(r0_mask & xmask, tmp3, 0)
    tmp6 = tl.sum(tmp5, 1)[:, None]
    tmp7 = -tmp1
    tmp8 = libdevice.fma(tmp7, tmp6, tmp2)
    tl.store(out_ptr1 + (r0_1 + 30*x2 + 3616*x3), tmp8, xmask & r0_mask)


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'out_ptr1': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'out_ptr1', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_bmm_61(in_ptr0, out_ptr0, out_ptr1, xnumel, XBLOCK : tl.constexpr):
    xnumel = 4233600
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 900)
    x1 = xindex // 900
    x2 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 900*((x1 % 4)) + 3616*(x1 // 4)), xmask)
    tl.store(out_ptr0 + (x2), tmp0, xmask)
    tl.store(out_ptr1 + (x2), tmp0, xmask)


@kernel(
    {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'in_ptr2', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_clone_62(in_ptr0, in_ptr1, in_ptr2, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 10160640
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x2 = ((xindex // 96) % 3)
    x4 = xindex // 8640
    x0 = (xindex % 24)
    x1 = ((xindex // 24) % 4)
    x3 = ((xindex // 288) % 30)
    x5 = (xindex % 96)
    x6 = xindex
    tmp0 = x4 + 1176*x2
    tmp1 = tl.full([1], 0, tl.int64)
    tmp2 = tmp0 >= tmp1
    tmp3 = tl.full([1], 1176, tl.int64)
    tmp4 = tmp0 < tmp3
    tmp5 = tmp4.to(tl.int1)
    tmp6 = tl.load(in_ptr0 + (x0 + 24*x3 + 720*x1 + 2880*(x4 + 1176*x2)), xmask & tmp5, other=0.0)
    tmp7 = 0.45180100180492244
    tmp8 = tmp6 * tmp7
    tmp9 = tl.full(tmp8.shape, 0.0, tmp8.dtype)
    tmp10 = tl.where(tmp5, tmp8, tmp9)
    tmp11 = tmp0 >= tmp3
    tmp12 = tl.full([1], 2352, tl.int64)
    tmp13 = tmp0 < tmp12
    tmp14 = tmp11 & tmp13
    tmp15 = tmp14.to(tl.int1)
    tmp16 = tl.load(in_ptr1 + (x3 + 30*x5 + 2880*((-1176) + x4 + 1176*x2)), xmask & tmp15, eviction_policy='evict_last', other=0.0)
    tmp17 = 0.45180100180492244
    tmp18 = tmp16 * tmp17
    tmp19 = tl.full(tmp18.shape, 0.0, tmp18.dtype)
    tmp20 = tl.where(tmp15, tmp18, tmp19)
    tmp21 = tmp0 >= tmp12
    tmp22 = tl.full([1], 3528, tl.int64)
    tmp23 = tmp0 < tmp22
    tmp24 = tmp21.to(tl.int1)
    tmp25 = tl.load(in_ptr2 + (x0 + 24*x3 + 720*x1 + 2880*((-2352) + x4 + 1176*x2)), xmask & tmp24, other=0.0)
    tmp26 = tl.where(tmp14, tmp20, tmp25)
    tmp27 = tl.where(tmp4, tmp10, tmp26)
    tl.store(out_ptr0 + (x6), tmp27, xmask)


@kernel(
    {'in_ptr0': '*i64', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_ptr0', 'in_ptr1', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 1024, 'num_warps': 4, 'num_stages': 1},
    {'XBLOCK': 512, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_poi_fused_embedding_dense_backward_scalar_tensor_63(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 16934400
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x3 = xindex // 96
    x0 = (xindex % 96)
    x2 = xindex // 480
    tmp0 = tl.load(in_ptr0 + (x3), xmask, eviction_policy='evict_last')
    tmp8 = tl.load(in_ptr1 + (x0 + 96*x2), xmask, eviction_policy='evict_last')
    tmp1 = tl.full([XBLOCK], 35, tl.int32)
    tmp2 = tmp0 + tmp1
    tmp3 = tmp0 < 0
    tmp4 = tl.where(tmp3, tmp2, tmp0)
    tl.device_assert(((0 <= tmp4) & (tmp4 < 35)) | ~(xmask), "index out of bounds: 0 <= tmp4 < 35")
    tmp6 = tl.full([1], -1, tl.int64)
    tmp7 = tmp0 == tmp6
    tmp9 = 0.0
    tmp10 = tl.where(tmp7, tmp9, tmp8)
    tl.atomic_add(out_ptr0 + (x0 + 96*tmp4), tmp10, xmask, sem='relaxed')


@kernel(
    {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
    ['in_ptr0', 'out_ptr0', 'xnumel'],
    {'XBLOCK': 64, 'R0_BLOCK': 8, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_red_fused_sum_64(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 28800
    r0_numel = 118
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x1 = xindex // 2880
    x0 = (xindex % 2880)
    _tmp6 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x3 = xindex
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_2 = r0_index
        tmp0 = r0_2 + 118*x1
        tmp1 = tl.full([1, 1], 1176, tl.int32)
        tmp2 = tmp0 < tmp1
        tmp3 = tmp2.to(tl.int1)
        tmp4 = tl.load(in_ptr0 + (x0 + 2880*r0_2 + 339840*x1), xmask & r0_mask & tmp3, eviction_policy='evict_first', other=0.0)
        tmp5 = tl.broadcast_to(tmp4, [XBLOCK, R0_BLOCK])
        tmp7 = _tmp6 + tmp5
        _tmp6 = tl.where(r0_mask & xmask, tmp7, _tmp6)
    tmp6 = tl.sum(_tmp6, 1)[:, None]
    tl.store(out_ptr0 + (x3), tmp6, xmask)


@kernel(
    {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'},
    ['in_out_ptr0', 'in_ptr0', 'xnumel'],
    {'XBLOCK': 128, 'num_warps': 4, 'num_stages': 1},
)
@triton.jit
def triton_per_fused_slice_backward_sum_65(in_out_ptr0, in_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 2880
    r0_numel = 10
    R0_BLOCK: tl.constexpr = 16
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 2880*r0_1), xmask & r0_mask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(r0_mask & xmask, tmp1, 0)
    tmp4 = tl.sum(tmp3, 1)[:, None]
    tl.debug_barrier()
    tl.store(in_out_ptr0 + (x0), tmp4, xmask)
