// mma GEMM for Q8_0 matrices: see gemm_sm80.cuh. One file per type, so that a model loads only the
// code of its types.
#include "gemm/gemm_sm80.cuh"

GEMM_SM80(gemm_sm80_q8_0_16, Q8_0, 2)
GEMM_SM80(gemm_sm80_q8_0_32, Q8_0, 4)
