// Step block and result block: the device side of crates/walla_device/src/step.rs.
// Names, order and sizes are the same there; both sides assert the sizes.
#pragma once

#include "common/walla.cuh"

struct StepHeader {
    uint64_t step;
    uint32_t rows;
    uint32_t outputs;
    uint32_t sequences;
    uint32_t biases;
    uint32_t ring_slot;
    uint32_t masks;
    uint32_t reserved[8];
};

struct StepRow {
    int32_t token; // negative: the sequence's last sampled token
    uint32_t position;
    uint32_t sequence;
    uint32_t table;
    int32_t previous;
    int32_t output;
    uint32_t flags;
    uint32_t reserved;
};
#define ROW_LAST_OF_SEQUENCE 1u

struct OutputRow {
    uint32_t row;
    uint32_t sequence;
    uint32_t position;
    uint32_t flags;
    float temperature;
    uint32_t top_k;
    float top_p;
    float min_p;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint32_t penalty_window;
    uint32_t seed[2];
    uint32_t candidates;
    uint32_t bias_first;
    uint32_t bias_count;
    uint32_t mask; // index in the mask block + 1; 0 allows all tokens
    uint32_t reserved[2];
};
#define OUTPUT_SAMPLE 1u

struct BiasRow {
    uint32_t token;
    float bias;
};

struct ResultHeader {
    uint64_t step;
    uint32_t outputs;
    uint32_t reserved;
    uint64_t begin_nanos;
    uint64_t end_nanos;
    uint64_t done; // step + 1, written last: see sample_draw
    uint32_t reserved_too[6];
};

struct ResultRow {
    uint32_t token;
    uint32_t flags;
    float log_probability;
    uint32_t candidates;
};
#define RESULT_SAMPLED 1u
#define RESULT_NOT_FINITE 2u

struct Candidate {
    uint32_t token;
    float log_probability;
};

static_assert(sizeof(StepHeader) == 64, "as in step.rs");
static_assert(sizeof(StepRow) == 32, "as in step.rs");
static_assert(sizeof(OutputRow) == 80, "as in step.rs");
static_assert(sizeof(BiasRow) == 8, "as in step.rs");
static_assert(sizeof(ResultHeader) == 64, "as in step.rs");
static_assert(sizeof(ResultRow) == 16, "as in step.rs");
static_assert(sizeof(Candidate) == 8, "as in step.rs");

#define CANDIDATES_MAX 16u
#define PENALTY_WINDOW_MAX 256u

// Address and layout of a step block.
struct StepRef {
    const uint8_t* block;
    uint32_t rows_offset;
    uint32_t outputs_offset;
    uint32_t biases_offset;
    uint32_t tables_offset;
    uint32_t pages_per_sequence;
    uint32_t reserved;

    __device__ const StepHeader& header() const {
        return *reinterpret_cast<const StepHeader*>(block);
    }
    __device__ const StepRow& row(uint32_t r) const {
        return reinterpret_cast<const StepRow*>(block + rows_offset)[r];
    }
    __device__ const OutputRow& output(uint32_t o) const {
        return reinterpret_cast<const OutputRow*>(block + outputs_offset)[o];
    }
    __device__ const BiasRow& bias(uint32_t b) const {
        return reinterpret_cast<const BiasRow*>(block + biases_offset)[b];
    }
    __device__ const uint32_t* table(uint32_t t) const {
        return reinterpret_cast<const uint32_t*>(block + tables_offset) +
               size_t(t) * pages_per_sequence;
    }
};
static_assert(sizeof(StepRef) == 32, "as in params.rs");

// Device clock in nanoseconds.
__device__ __forceinline__ uint64_t nanos() {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// Address of a ring of result blocks, and the layout of a block.
struct ResultRef {
    uint8_t* ring;
    uint32_t block_bytes;
    uint32_t rows_offset;
    uint32_t candidates_offset;
    uint32_t reserved;

    __device__ ResultHeader& header(uint32_t slot) const {
        return *reinterpret_cast<ResultHeader*>(ring + size_t(slot) * block_bytes);
    }
    __device__ ResultRow& row(uint32_t slot, uint32_t o) const {
        return reinterpret_cast<ResultRow*>(ring + size_t(slot) * block_bytes + rows_offset)[o];
    }
    __device__ Candidate* candidates(uint32_t slot, uint32_t o) const {
        return reinterpret_cast<Candidate*>(ring + size_t(slot) * block_bytes + candidates_offset) +
               o * CANDIDATES_MAX;
    }
};
static_assert(sizeof(ResultRef) == 24, "as in params.rs");
