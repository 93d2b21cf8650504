// matmul for more than a few rows of x and Q5_1 matrices: see matmul.cuh. One file a type, so that a model loads the code of its own types alone.
#include "matmul.cuh"

MATMULS_OF_MANY(Q5_1, q5_1)
