// matmul for Q8_0 matrices: see matmul.cuh. One file per type, so that a model loads only the code
// of its types.
#include "matmul.cuh"

MATMULS(Q8_0, q8_0)
