// Skinny GEMM for Q5_0 matrices: see gemm_skinny.cuh.
#include "gemm/gemm_skinny.cuh"

GEMM_SKINNY(gemm_skinny_q5_0_8, Q5_0)
