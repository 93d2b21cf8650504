//! Attention on tensor cores (kernels/attend.cuh): which kernel, how many blocks, how much shared memory.

use walla_device::{GpuFacts, HeadShape, Program};

/// Cells of one product (`TILE`): a page holds a multiple of it.
pub(super) const TILE: u32 = 16;
/// Cells whose weights share a maximum (`CHUNK`).
const CHUNK: u32 = 64;
/// Columns of one product (`COLUMNS`).
const COLUMNS: u32 = 8;
/// Chunks that blocks can leave for another to fold, of all rows together: enough to share out one row of 65,536 tokens, or 60
/// rows of 1,024, over the whole device; rows beyond are shared out less.
const SLOTS: u32 = 1024;
/// Rows of the longest step.
const ROWS_MAX: u32 = 512;
/// Rows whose decoding is bound by latency: one wide block on a multiprocessor then, else several narrow ones.
const FEW_ROWS: u32 = 8;

/// Warps of a block, tiles of each warp's ring, and blocks that a multiprocessor of an H200 holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    warps: u32,
    ring: u32,
    blocks: u32,
}

impl Tiling {
    const fn new(warps: u32, ring: u32, blocks: u32) -> Self {
        Self { warps, ring, blocks }
    }

    pub(super) fn threads(self) -> u32 {
        32 * self.warps
    }

    /// Bytes of `Few::Shared`, then four lists with a number for each row and one more: for the longest steps, since a kernel is
    /// given its room once.
    pub(super) fn shared_bytes(self, head_dim: u32) -> u32 {
        let Self { warps, ring, .. } = self;
        let tiles = warps * ring * TILE * head_dim * 2;
        let sums = warps * COLUMNS * (head_dim + 4) * 4;
        let columns = COLUMNS * (head_dim + 8) * 2;
        let fresh = 2 * head_dim * 2;
        let turns = head_dim / 2 * 8;
        let statistics = 2 * warps * COLUMNS * 4;
        let sight = COLUMNS * 8;
        let shared = tiles + sums + columns + fresh + turns + statistics + sight + 1;
        shared.next_multiple_of(128) + 4 * 4 * (ROWS_MAX + 1)
    }
}

/// The kernels for one shape of heads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    head_dim: u32,
    multiprocessors: u32,
    pub(super) decode: Tiling,
    pub(super) mixed: Tiling,
}

impl Form {
    /// The form for these heads on this chip, if there is one: an answer that depends on the program's rows in its speed alone.
    pub(super) fn of(facts: &GpuFacts, program: &Program, shape: HeadShape) -> Option<Self> {
        let (few, many, mixed) = match shape.head_dim {
            64 => (Tiling::new(8, 8, 1), Tiling::new(4, 4, 4), Tiling::new(4, 8, 2)),
            128 => (Tiling::new(8, 4, 1), Tiling::new(4, 4, 2), Tiling::new(4, 4, 2)),
            256 => (Tiling::new(4, 4, 1), Tiling::new(4, 4, 1), Tiling::new(4, 4, 1)),
            _ => return None,
        };
        let fits = |tiling: &Tiling| {
            u64::from(tiling.shared_bytes(shape.head_dim)) <= facts.shared_bytes_per_block_optin
        };
        if facts.compute_capability < (8, 0)
            || program.layout.rows_max > ROWS_MAX
            || ![many, mixed].iter().all(fits)
        {
            return None;
        }
        let is_few = program.rows_max <= FEW_ROWS && fits(&few);
        Some(Self {
            head_dim: shape.head_dim,
            multiprocessors: facts.multiprocessors.max(1),
            decode: if is_few { few } else { many },
            mixed,
        })
    }

    pub(super) fn decode_kernel(&self) -> String {
        let Tiling { warps, ring, .. } = self.decode;
        format!("attention_decode_{}_{warps}x{ring}", self.head_dim)
    }

    pub(super) fn mixed_kernel(&self) -> String {
        format!("attention_mixed_{}", self.head_dim)
    }

    /// Blocks: what the chip holds at once, or what the longest step of the program can use.
    pub(super) fn blocks(&self, tiling: Tiling, program: &Program, shape: HeadShape) -> u32 {
        let shares = chunks_max(program).div_ceil(tiling.warps);
        let most = u64::from(program.rows_max) * u64::from(groups(shape)) * u64::from(shares);
        most.min(u64::from(self.multiprocessors * tiling.blocks)) as u32
    }
}

/// Groups of query heads: each shares one KV head.
fn groups(shape: HeadShape) -> u32 {
    shape.kv_heads * (shape.heads / shape.kv_heads).div_ceil(COLUMNS)
}

fn chunks_max(program: &Program) -> u32 {
    program.context_max.div_ceil(CHUNK) + 1
}

/// Chunks that blocks can leave for others.
pub(super) fn slots_max(program: &Program) -> u32 {
    let all = u64::from(program.rows_max) * u64::from(chunks_max(program));
    all.min(u64::from(SLOTS)) as u32
}

/// Bytes of those.
pub(super) fn partials_bytes(program: &Program, shape: HeadShape) -> usize {
    let a_slot = groups(shape) * COLUMNS * (shape.head_dim + 2) * 4;
    slots_max(program) as usize * a_slot as usize
}

#[cfg(test)]
mod tests {
    use super::Tiling;

    #[test]
    fn shared_memory_is_what_the_kernels_lay_out() {
        // sizeof(Few<64, 8, 8>::Shared) and sizeof(Few<256, 4, 4>::Shared), as nvcc says.
        let lists = 4 * 4 * (512 + 1);
        assert_eq!(Tiling::new(8, 8, 1).shared_bytes(64) - lists, 150_784);
        assert_eq!(Tiling::new(4, 4, 1).shared_bytes(256) - lists, 171_008);
    }
}
