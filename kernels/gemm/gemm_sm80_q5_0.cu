// mma GEMM for Q5_0 matrices: see gemm_sm80.cuh. One file per type, so that a model loads only the
// code of its types.
#include "gemm/gemm_sm80.cuh"

GEMM_SM80(gemm_sm80_q5_0_16, Q5_0, 2)
GEMM_SM80(gemm_sm80_q5_0_32, Q5_0, 4)
