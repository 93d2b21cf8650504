// matmul for more than a few rows of x and Q6_K matrices: see gemm_sm80.cuh. One file per type, so
// that a model loads only the code of its types.
#include "gemm/gemm_sm80.cuh"

MATMULS_OF_MANY(Q6K, q6_k)
