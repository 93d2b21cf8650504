// Products of experts with Q5_0 matrices: formula, shapes, grid, bound and oracle in
// experts_gemm.cuh.
#include "experts/experts_gemm.cuh"

EXPERTS_GEMMS(experts_gemm_q5_0, Q5_0)
