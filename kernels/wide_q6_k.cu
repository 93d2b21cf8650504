// walla: targets sm_90a
// matmul by warpgroups for Q6K matrices: see wide.cuh.
#include "wide.cuh"

WIDES_BUT_CLUSTERS(Q6K, q6_k)
