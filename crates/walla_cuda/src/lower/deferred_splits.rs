//! Deferred split-K for decode: query, key and value are stored as per-split sums, which attention
//! reduces as it reads them (`DeferredSplits` in kernels/attention/attention.cuh).

use walla_device::{DeviceError, GpuFacts, KvType, op};

use super::Lowering;
use super::gemm_sm90::{Sm90Tiling, SplitKReducer, Splits};
use super::kernel::Kernel;
use super::operands::Input;
use super::product::{OrderedProduct, on_tensor_cores};
use crate::params::DeferredSplits;
use crate::repack;
use crate::resources::Matrix;

/// Maximum rows, and maximum head dimension (`MAX_DEFERRED_DIM`), for deferred split-K. More rows
/// were not measured. A block reads few bytes of 8-bit pages, so deferred splits of more rows are
/// slower than clusters there.
const MAX_DEFERRED_ROWS: u32 = 64;
const MAX_DEFERRED_ROWS_Q8: u32 = 32;
pub(super) const MAX_DEFERRED_DIM: u32 = 128;

/// Splits of each product, and the kernels, if all splits of the products of one input can be
/// deferred: they need whole tiles and equal numbers of splits.
fn deferred(gpu: &GpuFacts, matrices: &[&Matrix], rows: u32) -> Option<(u32, Vec<Kernel>)> {
    let mut splits = None;
    let mut kernels = Vec::new();
    for run in matrices.chunk_by(|a, b| a.ty == b.ty) {
        if run.iter().any(|its| !on_tensor_cores(its.ty)) {
            return None;
        }
        let ordered = OrderedProduct::of(gpu, (run, matrices), (rows, rows), false)?;
        let OrderedProduct { product, order, ty } = ordered;
        let cut = Sm90Tiling::of(&product, &order, gpu, SplitKReducer::Reader)?;
        let are_whole = run.iter().all(|its| its.rows.is_multiple_of(repack::TILE_ROWS as u32));
        let are_alike = *splits.get_or_insert(order.splits) == order.splits;
        if cut.splits != Splits::Deferred || !are_whole || !are_alike {
            return None;
        }
        kernels.push(cut.kernel(ty));
    }
    splits.map(|splits| (splits, kernels))
}

impl Lowering<'_> {
    /// Parameters of deferred query, key and value, which attention appends; `None` if they are not
    /// deferred.
    pub(super) fn deferred_splits(
        &mut self,
        op: &op::Qkv,
        input: &Input,
    ) -> Result<Option<DeferredSplits>, DeviceError> {
        let resources = self.resources;
        // A norm of values reads their sums.
        let Some(keys) = op.keys.filter(|keys| keys.value_norm.is_none()) else { return Ok(None) };
        let linears = [&op.query, &keys.key, &keys.value];
        let is_q8 = resources.cache(self.program.cache)?.desc.kv_type == KvType::Q8;
        let max_rows = if is_q8 { MAX_DEFERRED_ROWS_Q8 } else { MAX_DEFERRED_ROWS };
        if !self.warpgroups
            || self.program.max_rows > max_rows
            || op.shape.head_dim > MAX_DEFERRED_DIM
            || linears.iter().any(|linear| linear.bias.is_some())
        {
            return Ok(None);
        }
        let [query, key, value] = linears.map(|linear| resources.matrix(linear.matrix));
        let matrices = [query?, key?, value?];
        let facts = &self.context.gpu().facts;
        let products = deferred(facts, &matrices, self.program.max_rows);
        let Some((count, kernels)) = products else { return Ok(None) };
        for kernel in &kernels {
            if self.find(kernel)?.is_none() {
                return Ok(None);
            }
        }
        let normed = self.normed.filter(|its| input.is(its) && its.squares.is_some());
        Ok(Some(DeferredSplits {
            norm_factors: normed.map_or(0, |its| self.factors(self.factors == its.has_factors)),
            pack_factors: normed.map_or(0, |its| its.pack_factors),
            count,
            stride: self.program.max_rows * matrices.iter().map(|matrix| matrix.rows).sum::<u32>(),
            scales: matrices.map(|matrix| matrix.weight.scale),
            reserved: 0,
        }))
    }
}
