// walla: targets sm_90a
// WGMMA GEMM for F16 matrices: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

WIDES(F16, f16)
