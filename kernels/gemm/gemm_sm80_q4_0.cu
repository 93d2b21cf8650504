// mma GEMM for Q4_0 matrices: see gemm_sm80.cuh. One file per type, so that a model loads only the
// code of its types.
#include "gemm/gemm_sm80.cuh"

GEMM_SM80(gemm_sm80_q4_0_16, Q4_0, 2)
GEMM_SM80(gemm_sm80_q4_0_32, Q4_0, 4)
