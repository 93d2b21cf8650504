// Skinny GEMM for Q4_0 matrices: see gemm_skinny.cuh.
#include "gemm/gemm_skinny.cuh"

GEMM_SKINNY(gemm_skinny_q4_0_8, Q4_0)
