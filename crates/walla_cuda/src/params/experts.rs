//! Parameter structs of the kernels for mixtures of experts (kernels/experts).

use bytemuck::{Pod, Zeroable};

use super::{Address, PackedRef, StepRef, WeightRef};

/// Choices of one expert (`ExpertItem`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ExpertItem {
    pub expert: u32,
    pub first: u32,
    pub count: u32,
    pub reserved: u32,
}

/// The experts of each row, and the rows of each expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ChoicesRef {
    /// Number of items, and arrived blocks of `experts_route`.
    pub counts: Address,
    pub items: Address,
    pub list: Address,
    pub chosen: Address,
    pub weights: Address,
    pub experts: u32,
    pub used: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ExpertsRouterParams {
    pub step: StepRef,
    pub x: Address,
    pub norm: Address,
    pub products: Address,
    pub weight: WeightRef,
    pub width: u32,
    pub eps: f32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ExpertsRouteParams {
    pub step: StepRef,
    pub choices: ChoicesRef,
    /// Products of the router.
    pub products: Address,
    /// Bias of the choice; 0: none.
    pub bias: Address,
    /// Sums of squares of rows; 0: their factors are exact.
    pub squares: Address,
    pub pack_factors: Address,
    pub factors: Address,
    pub squares_count: u32,
    pub inverse_width: f32,
    pub eps: f32,
    pub is_sigmoid: u32,
    /// Words of a row of the bitmap.
    pub row_words: u32,
    /// Maximum rows of an item.
    pub item_rows: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ExpertsGemmParams {
    pub choices: ChoicesRef,
    pub x: PackedRef,
    /// Packed result of gate and up.
    pub h: PackedRef,
    /// Result of down.
    pub y: Address,
    /// Factors of rows of x; 0: they are 1.
    pub factors: Address,
    pub weight: [WeightRef; 2],
    /// Rows of an expert's matrix.
    pub height: u32,
    pub mode: u32,
    pub unscale: f32,
    pub tiles: u32,
    pub block_tiles: u32,
    pub runs: u32,
    pub run_segments: u32,
    pub stage_segments: u32,
    pub pass_rows: u32,
    pub shared_bytes: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ExpertsAddParams {
    pub step: StepRef,
    pub y: Address,
    pub weights: Address,
    pub x: Address,
    /// Weights of the next norm, whose input is written packed; 0: none.
    pub next_norm: Address,
    pub packed: PackedRef,
    pub factors: Address,
    pub width: u32,
    pub used: u32,
    pub next_eps: f32,
    pub reserved: u32,
}

const _: () = assert!(size_of::<ExpertItem>() == 16);
const _: () = assert!(size_of::<ChoicesRef>() == 48);
const _: () = assert!(size_of::<ExpertsRouterParams>() == 88);
const _: () = assert!(size_of::<ExpertsRouteParams>() == 144);
const _: () = assert!(size_of::<ExpertsGemmParams>() == 200);
const _: () = assert!(size_of::<ExpertsAddParams>() == 112);
