// linear for Q4_1 matrices: see linear.cuh. One file a type, so that a model loads the code of its own types alone.
#include "linear.cuh"

LINEARS(Q4_1, q4_1)
