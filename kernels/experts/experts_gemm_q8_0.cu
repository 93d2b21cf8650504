// Products of experts with Q8_0 matrices: formula, shapes, grid, bound and oracle in
// experts_gemm.cuh.
#include "experts/experts_gemm.cuh"

EXPERTS_GEMMS(experts_gemm_q8_0, Q8_0)
