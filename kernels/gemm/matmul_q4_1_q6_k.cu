// Skinny GEMM with Q4_1 and Q6_K matrices, one type or both in one launch: see gemm_skinny.cuh.
#include "gemm/gemm_skinny.cuh"

FEW_PAIR(Q4_1, q4_1, Q6K, q6_k)
