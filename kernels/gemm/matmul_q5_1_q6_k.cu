// Skinny GEMM with Q5_1 and Q6_K matrices, one type or both in one launch: see gemm_skinny.cuh.
#include "gemm/gemm_skinny.cuh"

FEW_PAIR(Q5_1, q5_1, Q6K, q6_k)
