// matmul for Q5_0 matrices: see matmul.cuh. One file per type, so that a model loads only the code
// of its types.
#include "matmul.cuh"

MATMULS(Q5_0, q5_0)
