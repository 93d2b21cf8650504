//! Tiling for more than one group of rows per block (kernels/gemm/gemm_sm80.cuh).

use walla_device::GpuFacts;

use super::{GROUP_ROWS, MAX_WARPS, Product, SUM_STRIDE, Tiling};

/// Cost of unpacking a tile's segment, in units of its multiplication with one group of rows.
const UNPACKING: u32 = 4;

impl Tiling {
    /// Computes the tiling for four or two groups of rows per block (kernels/gemm/gemm_sm80.cuh).
    pub(super) fn sm80(self, product: &Product, gpu: &GpuFacts) -> Option<Self> {
        let two = self.order.run.min(2);
        let rings = [(two, 3), (two, 2), (two, 1), (1, 2), (1, 1)];
        let of_groups = |groups: u32| {
            // More teams share the rows of x, if there is work for each.
            let row_blocks = Self { groups, ..self }.row_blocks(product);
            let tasks = product.tiles * row_blocks * self.order.splits;
            let is_worth = |teams: &u32| *teams == 1 || tasks >= gpu.multiprocessors * teams;
            let teams = (1..=MAX_WARPS / self.order.runs).filter(is_worth);
            let cuts = teams.flat_map(|teams| {
                rings.map(|(stage_segments, depth)| Self {
                    groups,
                    teams,
                    stage_segments,
                    depth,
                    ..self
                })
            });
            let sized = cuts.filter_map(|cut| cut.fit(product, gpu));
            // As many warps per multiprocessor as possible, each with a stage in flight while it
            // multiplies.
            sized.max_by_key(|(cut, warps)| {
                (warps * cut.depth.min(2), cut.depth * cut.stage_segments, cut.teams)
            })
        };
        // Fewer groups allow more warps but unpack the weights more often. If a split has one run,
        // blocks end shortly after they begin, so use small ones.
        let cost = |(cut, warps): &(Self, u32)| {
            let [blocks, ..] = cut.grid;
            let waves = product.tiles.div_ceil(blocks * cut.teams);
            waves * (UNPACKING + cut.groups) * (MAX_WARPS + warps)
        };
        let groups: &[u32] = if self.order.runs == 1 { &[2] } else { &[4, 2] };
        groups.iter().filter_map(|groups| of_groups(*groups)).min_by_key(cost).map(|(cut, _)| cut)
    }

    /// Computes grid and shared memory for more than one group of rows per block. Also returns the
    /// warps that a multiprocessor holds. `None` if it does not fit.
    fn fit(mut self, product: &Product, gpu: &GpuFacts) -> Option<(Self, u32)> {
        let x = self.groups * product.segments.min(self.order.split_segments) * GROUP_ROWS * 256;
        let ring = self.order.runs
            * self.teams
            * self.depth
            * self.stage_segments
            * 2
            * product.record_bytes;
        let sums = self.order.runs * self.teams * self.groups * GROUP_ROWS * SUM_STRIDE * 4;
        self.shared_bytes = x + ring + sums;
        // Small blocks share a multiprocessor.
        let resident = (1..=MAX_WARPS / self.warps()).rev().find(|n| self.fits(*n, gpu))?;
        let places = gpu.multiprocessors.max(1) * resident;
        let row_blocks = self.row_blocks(product);
        let waves = product.tiles.div_ceil(self.teams);
        let rounds = waves.div_ceil((places / (row_blocks * self.order.splits)).max(1));
        self.grid = [waves.div_ceil(rounds), row_blocks, self.order.splits];
        Some((self, resident * self.warps()))
    }
}
