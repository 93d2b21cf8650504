// Skinny GEMM for F16 matrices: see gemm_skinny.cuh.
#include "gemm/gemm_skinny.cuh"

GEMM_SKINNY(gemm_skinny_f16_8, F16)
