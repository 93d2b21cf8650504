// Products of experts with Q6_K matrices: formula, shapes, grid, bound and oracle in
// experts_gemm.cuh.
#include "experts/experts_gemm.cuh"

EXPERTS_GEMMS(experts_gemm_q6_k, Q6K)
