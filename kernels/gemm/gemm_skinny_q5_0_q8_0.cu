// Skinny GEMM for a Q5_0 and a Q8_0 matrix in one launch: see gemm_skinny.cuh. Files of Q4_K_M have
// these types if rows are not a multiple of 256.
#include "gemm/gemm_skinny.cuh"

GEMM_SKINNY_PAIR(gemm_skinny_q5_0_q8_0_8, Q5_0, Q8_0)
