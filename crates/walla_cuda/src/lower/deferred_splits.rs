//! Deferred split-K for decode: query, key and value are stored as per-split sums, which attention
//! reduces as it reads them (`DeferredSplits` in kernels/attention/attention.cuh).

use walla_device::{DeviceError, GpuFacts, HeadShape, KvType, Linear, Program};

use super::Lowering;
use super::attention::{Qkv, can_append};
use super::gemm_sm90::{Sm90Tiling, SplitKReducer, Splits};
use super::kernel::Kernel;
use super::operands::Input;
use super::product::{OrderedProduct, on_tensor_cores};
use crate::params::DeferredSplits;
use crate::repack;
use crate::resources::{Matrix, Resources};

/// Maximum rows, and maximum head dimension (`MAX_DEFERRED_DIM`), for deferred split-K. More rows
/// were not measured. A block reads few bytes of 8-bit pages, so deferred splits of more rows are
/// slower than clusters there.
const MAX_DEFERRED_ROWS: u32 = 64;
const MAX_DEFERRED_ROWS_Q8: u32 = 32;
pub(super) const MAX_DEFERRED_DIM: u32 = 128;

/// Products of one input whose splits are all deferred to attention.
pub(super) struct DeferredProducts {
    /// Splits of each product.
    pub(super) splits: u32,
    kernels: Vec<Kernel>,
}

impl DeferredProducts {
    /// Deferred products of query, key and value; `None` if they are not deferred.
    pub(super) fn of(
        (gpu, warpgroups): (&GpuFacts, bool),
        resources: &Resources,
        program: &Program,
        shape: HeadShape,
        linears: [&Linear; 3],
    ) -> Result<Option<Self>, DeviceError> {
        let cache = &resources.cache(program.cache)?.desc;
        let max_rows =
            if cache.kv_type == KvType::Q8 { MAX_DEFERRED_ROWS_Q8 } else { MAX_DEFERRED_ROWS };
        let may_be_deferred = warpgroups
            && can_append(gpu, cache, program, shape)
            && program.max_rows <= max_rows
            && shape.head_dim <= MAX_DEFERRED_DIM
            && linears.iter().all(|linear| linear.bias.is_none());
        if !may_be_deferred {
            return Ok(None);
        }
        let [query, key, value] = linears.map(|linear| resources.matrix(linear.matrix));
        Ok(Self::of_matrices(gpu, &[query?, key?, value?], program.max_rows))
    }

    /// The same for matrices: they need whole tiles and equal numbers of splits.
    fn of_matrices(gpu: &GpuFacts, matrices: &[&Matrix], rows: u32) -> Option<Self> {
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
        splits.map(|splits| Self { splits, kernels })
    }
}

impl Lowering<'_> {
    /// Parameters of deferred query, key and value; `None` if they are not deferred.
    pub(super) fn deferred_splits(
        &mut self,
        op: &Qkv<'_>,
        input: &Input,
    ) -> Result<Option<DeferredSplits>, DeviceError> {
        let gpu = (&self.context.gpu().facts, self.warpgroups);
        // A norm of values reads their sums.
        let Some(keys) = op.keys.filter(|keys| keys.value_norm.is_none()) else { return Ok(None) };
        let linears = [op.query, &keys.key, &keys.value];
        let products = DeferredProducts::of(gpu, self.resources, self.program, op.shape, linears)?;
        let Some(products) = products else { return Ok(None) };
        for kernel in &products.kernels {
            if self.find(kernel)?.is_none() {
                return Ok(None);
            }
        }
        let [query, key, value] = linears.map(|linear| self.resources.matrix(linear.matrix));
        let matrices = [query?, key?, value?];
        let normed = self.normed.filter(|its| input.is(its) && its.squares.is_some());
        Ok(Some(DeferredSplits {
            norm_factors: normed.map_or(0, |its| self.factors(self.factors == its.has_factors)),
            pack_factors: normed.map_or(0, |its| its.pack_factors),
            count: products.splits,
            stride: self.program.max_rows * matrices.iter().map(|matrix| matrix.rows).sum::<u32>(),
            scales: matrices.map(|matrix| matrix.weight.scale),
            reserved: 0,
        }))
    }
}
