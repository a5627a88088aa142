"""The kernel that inductor writes on ROCm for ``mask.any(dim=-1)``: no cast to int1 after the load.

Triton 3.1 (PyTorch 2.5) gives int8 back from a load of booleans on an AMD GPU, and refuses to
compile the loop; from 3.2 on the load casts back (triton#2151; tickets COS-8.1 and COS-9.2).
"""

import triton
import triton.language as tl
from kernel import kernel


@kernel(
    {"x": "*i1", "out": "*i1", "n": "i32", "BLOCK": "constexpr"},
    [],
    {"BLOCK": 2, "num_warps": 4, "num_stages": 1},
)
@triton.jit
def any_of_mask(x, out, n, BLOCK: tl.constexpr):
    _tmp2 = tl.full([1, BLOCK], False, tl.int1)
    for offset in range(0, n, BLOCK):
        index = offset + tl.arange(0, BLOCK)[None, :]
        mask = index < n
        tmp0 = tl.load(x + index, mask, other=0.0)
        tmp3 = _tmp2 | tmp0
        _tmp2 = tl.where(mask, tmp3, _tmp2)
    tmp2 = tl.max(_tmp2.to(tl.int8), 1)[:, None].to(tl.int1)
    tl.store(out + tl.full([1, 1], 0, tl.int32), tmp2)
