// linear for Q5_1 matrices: see linear.cuh. One file a type, so that a model loads the code of its own types alone.
#include "linear.cuh"

LINEARS(Q5_1, q5_1)
