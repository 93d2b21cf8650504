// Skinny GEMM with Q5_1 and Q6_K matrices, one type or both in one launch: see few.cuh.
#include "few.cuh"

FEW_PAIR(Q5_1, q5_1, Q6K, q6_k)
