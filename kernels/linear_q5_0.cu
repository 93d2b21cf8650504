// linear for Q5_0 matrices: see linear.cuh. One file a type, so that a model loads the code of its own types alone.
#include "linear.cuh"

LINEARS(Q5_0, q5_0)
