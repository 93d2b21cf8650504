// Skinny GEMM for Q8_0 matrices: see gemm_skinny.cuh.
#include "gemm/gemm_skinny.cuh"

GEMM_SKINNY(gemm_skinny_q8_0_8, Q8_0)
