// walla: targets sm_90a
// WGMMA GEMM for Q8_0 matrices: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

WIDES(Q8_0, q8_0)
