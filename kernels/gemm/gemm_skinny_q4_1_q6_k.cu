// Skinny GEMM for Q4_1 and Q6_K matrices, one type or both in one launch: see
// gemm_skinny.cuh.
#include "gemm/gemm_skinny.cuh"

GEMM_SKINNY_PAIR(gemm_skinny_q4_1_q6_k_8, Q4_1, Q6K)
