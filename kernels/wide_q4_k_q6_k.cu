// walla: targets sm_90a
// Products by clusters of warpgroups with Q4K and Q6K matrices in one launch: see wide.cuh.
#include "wide.cuh"

WIDE_PAIRS(Q4K, q4_k, Q6K, q6_k)
