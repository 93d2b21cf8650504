// Products of few rows with Q4K and Q6K matrices in one launch: see few.cuh.
#include "few.cuh"

FEW_PAIR(Q4K, q4_k, Q6K, q6_k)
