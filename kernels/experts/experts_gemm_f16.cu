// Products of experts with F16 matrices: formula, shapes, grid, bound and oracle in
// experts_gemm.cuh.
#include "experts/experts_gemm.cuh"

EXPERTS_GEMMS(experts_gemm_f16, F16)
