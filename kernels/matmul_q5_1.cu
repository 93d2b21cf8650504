// matmul for more than a few rows of x and Q5_1 matrices: see matmul.cuh. One file per type, so
// that a model loads only the code of its types.
#include "matmul.cuh"

MATMULS_OF_MANY(Q5_1, q5_1)
