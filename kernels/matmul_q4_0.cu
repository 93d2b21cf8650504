// matmul for Q4_0 matrices: see matmul.cuh. One file per type, so that a model loads only the code
// of its types.
#include "matmul.cuh"

MATMULS(Q4_0, q4_0)
