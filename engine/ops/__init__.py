# Names of the fused kernels, each of which can be left to its plain reference.
KERNELS = (
    "gemv", "gemm", "norm", "swiglu", "paged", "frame", "ring", "draw", "noise", "conv", "unit", "depthwise",
    "tail", "pasts",
)  # fmt: skip
