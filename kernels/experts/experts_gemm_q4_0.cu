// Products of experts with Q4_0 matrices: formula, shapes, grid, bound and oracle in
// experts_gemm.cuh.
#include "experts/experts_gemm.cuh"

EXPERTS_GEMMS(experts_gemm_q4_0, Q4_0)
