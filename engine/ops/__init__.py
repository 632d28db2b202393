# Names of the fused kernels, each of which can be left to its plain reference, and of their early start.
KERNELS = (
    "gemv", "gemm", "norm", "swiglu", "paged", "frame", "ring", "sample", "conv", "unit",
    "resident_unit", "depthwise", "tail", "pasts", "quantized", "predictor", "early",
)  # fmt: skip
