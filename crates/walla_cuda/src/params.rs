//! Parameter structs of the kernels: the host's side of `kernels/*.cuh`. Both sides assert the sizes.

use bytemuck::{Pod, Zeroable};

/// A device address; 0 is none.
pub(crate) type Address = u64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct StepRef {
    pub block: Address,
    pub rows_offset: u32,
    pub outputs_offset: u32,
    pub biases_offset: u32,
    pub tables_offset: u32,
    pub pages_per_sequence: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ResultRef {
    pub ring: Address,
    pub block_bytes: u32,
    pub rows_offset: u32,
    pub candidates_offset: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct WeightRef {
    pub quants: Address,
    pub high: Address,
    pub scales: Address,
    pub supers: Address,
    pub rows: u32,
    pub cols: u32,
    pub kind: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct EmbedParams {
    pub step: StepRef,
    pub table: WeightRef,
    pub x: Address,
    pub last_sampled: Address,
    pub recent: Address,
    pub width: u32,
    pub scale: f32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Segment {
    pub weight: WeightRef,
    pub bias: Address,
    pub out: Address,
    pub out_stride: u32,
    pub first_pair: u32,
}

/// What a linear kernel does with its products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum LinearMode {
    Store = 0,
    Add = 1,
    GateSilu = 2,
    GateGelu = 3,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct LinearParams {
    pub step: StepRef,
    pub x: Address,
    pub norm: Address,
    pub x_stride: u32,
    pub width: u32,
    pub eps: f32,
    pub mode: u32,
    pub by_output: u32,
    pub segments: u32,
    pub segment: [Segment; 3],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct SampleParams {
    pub step: StepRef,
    pub results: ResultRef,
    pub logits: Address,
    pub last_sampled: Address,
    pub vocab: u32,
    pub reserved: u32,
}

const _: () = assert!(size_of::<StepRef>() == 32);
const _: () = assert!(size_of::<ResultRef>() == 24);
const _: () = assert!(size_of::<WeightRef>() == 48);
const _: () = assert!(size_of::<EmbedParams>() == 112);
const _: () = assert!(size_of::<Segment>() == 72);
const _: () = assert!(size_of::<LinearParams>() == 288);
const _: () = assert!(size_of::<SampleParams>() == 80);
