//! Operands of linear kernels.

use walla_device::{Linear, Slot};

use crate::params::{Address, PackedRef, PagesRef};

/// Input of a linear kernel.
pub(super) struct Input {
    pub(super) slot: Slot,
    pub(super) x: Address,
    pub(super) width: u32,
    pub(super) norm: Option<(Address, f32)>,
    pub(super) rows: u32,
    pub(super) by_output: bool,
    /// The packed rows, if an earlier kernel packed them.
    pub(super) packed: Option<PackedRef>,
    /// KV pages of the next attention, which may be prefetched meanwhile.
    pub(super) next_pages: PagesRef,
}

impl Input {
    /// Whether `normed` holds these rows, packed for the same norm.
    pub(super) fn is(&self, normed: &Normed) -> bool {
        normed.slot == self.slot && self.norm.is_some_and(|(norm, _)| norm == normed.norm)
    }
}

/// One matrix of a launch: the product's address, and the stride of its rows in numbers.
pub(super) struct Part<'a> {
    pub(super) linear: &'a Linear,
    pub(super) out: Address,
    pub(super) stride: u32,
}

/// The rows of a slot, packed as a norm's input: multiplied by the norm's weights and a factor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Normed {
    pub(super) slot: Slot,
    /// The norm's weights.
    pub(super) norm: Address,
    pub(super) rows: PackedRef,
    /// The factor that each row was packed with: the exact norm factor or an approximation.
    pub(super) pack_factors: Address,
    /// Sums of squares from which the exact factor is computed, and their number per row. `None` if
    /// `pack_factors` are exact.
    pub(super) squares: Option<(Address, u32)>,
    /// Whether a product has written the exact factors, from which the next norm's are estimated.
    pub(super) has_factors: bool,
}
