// Choices of a mixture of experts: which rows use which expert. `experts_route` writes them, the
// other kernels of this folder read them.
//
// A choice is one chosen expert of one row; choice c belongs to row c / used. The choices of a row
// are in ascending order of their experts. The list has all choices ordered by expert, and of an
// expert by row. An item is up to `item_rows` neighbours of the list with the same expert; items
// are in the order of the list.
#pragma once

#include "common/walla.cuh"

constexpr uint32_t ITEM_ROWS_MAX = 32;

struct ExpertItem {
    uint32_t expert;
    uint32_t first; // of its choices in the list
    uint32_t count; // of its choices: 1 to `item_rows`
    uint32_t reserved;
};
static_assert(sizeof(ExpertItem) == 16, "as in params/experts.rs");

struct ChoicesRef {
    uint32_t* counts; // items of the step; blocks that have arrived, zero between launches
    ExpertItem* items;
    uint32_t* list;   // [rows * used]: choices
    uint32_t* chosen; // [rows, used]: experts
    float* weights;   // [rows, used]
    uint32_t experts;
    uint32_t used;
};
static_assert(sizeof(ChoicesRef) == 48, "as in params/experts.rs");
