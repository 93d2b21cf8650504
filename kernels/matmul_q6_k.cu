// matmul for more than a few rows of x and Q6K matrices: see matmul.cuh. One file a type, so that a model loads the code of its own types alone.
#include "matmul.cuh"

MATMULS_OF_MANY(Q6K, q6_k)
