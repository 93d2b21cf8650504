//! Attention on tensor cores (kernels/attend.cuh): which kernel, how many blocks, how much shared memory.

use walla_device::{GpuFacts, HeadShape, Program};

/// Cells of one product (`TILE`): a page holds a multiple of it.
pub(super) const TILE: u32 = 16;
/// Cells whose weights share a maximum (`CHUNK`), and tiles of them (`TILES`).
const CHUNK: u32 = 64;
const TILES: u32 = CHUNK / TILE;
/// Columns of one product (`COLUMNS`).
const COLUMNS: u32 = 8;
/// Chunks that blocks can leave for another to fold, of all rows together: enough to share out one row of 65,536 tokens, or 60
/// rows of 1,024, over the whole device; rows beyond are shared out less.
const SLOTS: u32 = 1024;
/// Longest context in which no row keeps a cluster of two blocks for more than five turns.
const SHORT_CONTEXT: u32 = 1_280;
/// Rows of the longest step (`ROWS_MAX`).
const ROWS_MAX: u32 = 512;

/// Heads as pages have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heads {
    dim: u32,
    /// 8 bits with a scale, else f16.
    is_q8: bool,
}

impl Heads {
    /// Bytes of a tile in shared memory (`Tile::BYTES`).
    const fn tile_bytes(self) -> u32 {
        if self.is_q8 { TILE * (self.dim + 2) } else { TILE * self.dim * 2 }
    }

    /// Bytes of `RowHeads`.
    const fn row_bytes(self) -> u32 {
        let number = if self.is_q8 { 1 } else { 2 };
        let columns = COLUMNS * (self.dim + 8) * 2;
        let fresh = 2 * (self.dim * number + 16);
        columns + fresh + self.dim / 2 * 8
    }

    /// As kernels are named.
    fn name(self) -> String {
        format!("{}_{}", if self.is_q8 { "q8" } else { "f16" }, self.dim)
    }
}

/// Warps of a block, tiles of each warp's ring, and blocks that a multiprocessor of an H200 holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiling {
    warps: u32,
    ring: u32,
    blocks: u32,
}

impl Tiling {
    const fn new(warps: u32, ring: u32, blocks: u32) -> Self {
        Self { warps, ring, blocks }
    }

    /// Bytes of `Few::Shared`, then four lists with a number for each row and one more: for the longest steps, since a kernel is
    /// given its room once.
    fn shared_bytes(self, heads: Heads) -> u32 {
        let Self { warps, ring, .. } = self;
        let tiles = warps * ring * heads.tile_bytes();
        // Sums of f16 lie apart by four, of 8 bits in another order.
        let stride = if heads.is_q8 { heads.dim } else { heads.dim + 4 };
        let sums = warps * COLUMNS * stride * 4;
        let statistics = 2 * warps * COLUMNS * 4;
        let sight = COLUMNS * 8;
        let shared = tiles + sums + heads.row_bytes() + statistics + sight + 1;
        shared.next_multiple_of(128) + 4 * 4 * (ROWS_MAX + 1)
    }
}

/// How decoding steps and mixed ones are made, with as many warps as possible first.
fn tilings(heads: Heads) -> &'static [[Tiling; 2]] {
    match (heads.dim, heads.is_q8) {
        (64, false) => const { &[[Tiling::new(4, 4, 4), Tiling::new(4, 8, 2)]] },
        (64, true) => const { &[[Tiling::new(4, 8, 4), Tiling::new(4, 8, 2)]] },
        (128, false) => const { &[[Tiling::new(4, 4, 2); 2]] },
        (128, true) => const { &[[Tiling::new(4, 8, 2); 2]] },
        (256, false) => const { &[[Tiling::new(4, 4, 1); 2], [Tiling::new(2, 4, 1); 2]] },
        (256, true) => const { &[[Tiling::new(4, 4, 1); 2], [Tiling::new(2, 8, 1); 2]] },
        _ => &[],
    }
}

/// A cluster of blocks that decodes a row together: how many, teams of four warps in each, chunks that a team has on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cluster {
    ranks: u32,
    teams: u32,
    ahead: u32,
}

impl Cluster {
    const fn new(ranks: u32, teams: u32, ahead: u32) -> Self {
        Self { ranks, teams, ahead }
    }

    /// The cluster for steps of up to so many rows times groups, where one is quicker than blocks that meet in memory: as long as
    /// some two blocks a multiprocessor are enough. A small one takes long for a long row among short ones, so it is for short contexts.
    const fn of(heads: Heads, most: u32, context_max: u32) -> Option<Self> {
        match (heads.dim, heads.is_q8, most) {
            (64, false, 33..=128) if context_max <= SHORT_CONTEXT => Some(Self::new(2, 2, 2)),
            (64, _, ..=8) | (128, true, ..=8) => Some(Self::new(8, 2, 2)),
            (64, _, ..=32) | (128, true, ..=16) => Some(Self::new(4, 2, 2)),
            (128, false, ..=16) | (256, false, ..=8) | (256, true, ..=16) => {
                Some(Self::new(8, 1, 2))
            }
            _ => None,
        }
    }

    /// Bytes of `Cluster::Shared`.
    fn shared_bytes(self, heads: Heads) -> u32 {
        let Self { ranks, teams, ahead } = self;
        let tiles = teams * ahead * 2 * TILES * heads.tile_bytes();
        let round = 4 * ranks;
        let products = heads.dim / 64;
        let sums = round * (2 * TILES / ranks) * products * 8 * COLUMNS * 4;
        let statistics = 2 * round * COLUMNS * 4;
        let making = teams * TILES * heads.dim * 4;
        let weights = teams * TILES * 32 * 8;
        let maxima = teams * TILES * COLUMNS * 4;
        let barrier = 8;
        let shared =
            tiles + sums + statistics + heads.row_bytes() + making + weights + maxima + barrier;
        shared.next_multiple_of(128)
    }
}

/// A kernel and how it is launched.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) file: &'static str,
    pub(super) name: String,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
}

/// The kernels for one shape of heads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    heads: Heads,
    multiprocessors: u32,
    decode: Tiling,
    mixed: Tiling,
    cluster: Option<Cluster>,
}

impl Form {
    /// The form for these heads on this chip, if there is one: an answer that depends on the program's rows in its speed alone.
    pub(super) fn of(
        facts: &GpuFacts,
        program: &Program,
        shape: HeadShape,
        is_q8: bool,
    ) -> Option<Self> {
        let heads = Heads { dim: shape.head_dim, is_q8 };
        let fits = |bytes: u32| u64::from(bytes) <= facts.shared_bytes_per_block_optin;
        let both_fit = |both: &&[Tiling; 2]| both.iter().all(|its| fits(its.shared_bytes(heads)));
        if facts.compute_capability < (8, 0) || program.layout.rows_max > ROWS_MAX {
            return None;
        }
        let [decode, mixed] = *tilings(heads).iter().find(both_fit)?;
        let cluster = Cluster::of(heads, program.rows_max * groups(shape), program.context_max);
        let cluster = cluster
            .filter(|its| facts.compute_capability >= (9, 0) && fits(its.shared_bytes(heads)));
        Some(Self { heads, multiprocessors: facts.multiprocessors.max(1), decode, mixed, cluster })
    }

    /// The kernel that decodes in clusters, where that is quicker and the image in use has it.
    pub(super) fn decode_in_clusters(&self, program: &Program, shape: HeadShape) -> Option<Chosen> {
        let cluster = self.cluster?;
        let Cluster { ranks, teams, ahead } = cluster;
        Some(Chosen {
            file: "attention_cluster",
            name: format!("attention_cluster_{}_{ranks}x{teams}x{ahead}", self.heads.name()),
            grid: [ranks * groups(shape), program.rows_max, 1],
            threads: teams * TILES * 32,
            shared_bytes: cluster.shared_bytes(self.heads),
        })
    }

    pub(super) fn decode(&self, program: &Program, shape: HeadShape) -> Chosen {
        let Tiling { warps, ring, .. } = self.decode;
        let name = format!("attention_decode_{}_{warps}x{ring}", self.heads.name());
        self.chosen("attention_decode", name, self.decode, program, shape)
    }

    pub(super) fn mixed(&self, program: &Program, shape: HeadShape) -> Chosen {
        let Tiling { warps, ring, .. } = self.mixed;
        let name = format!("attention_mixed_{}_{warps}x{ring}", self.heads.name());
        self.chosen("attention_mixed", name, self.mixed, program, shape)
    }

    /// As many blocks as the chip holds at once, or as the longest step of the program can use.
    fn chosen(
        &self,
        file: &'static str,
        name: String,
        tiling: Tiling,
        program: &Program,
        shape: HeadShape,
    ) -> Chosen {
        let shares = chunks_max(program).div_ceil(tiling.warps);
        let most = u64::from(program.rows_max) * u64::from(groups(shape)) * u64::from(shares);
        let blocks = most.min(u64::from(self.multiprocessors * tiling.blocks)) as u32;
        Chosen {
            file,
            name,
            grid: [blocks, 1, 1],
            threads: 32 * tiling.warps,
            shared_bytes: tiling.shared_bytes(self.heads),
        }
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
    use super::{Cluster, Heads, Tiling};

    #[test]
    fn shared_memory_is_what_the_kernels_lay_out() {
        // sizeof(Few<…>::Shared) and sizeof(Cluster<…>::Shared), as nvcc says.
        let lists = 4 * 4 * (512 + 1);
        let few = |warps, ring, dim, is_q8| {
            Tiling::new(warps, ring, 1).shared_bytes(Heads { dim, is_q8 }) - lists
        };
        assert_eq!(few(4, 4, 64, false), 43_520);
        assert_eq!(few(4, 4, 256, false), 171_008);
        assert_eq!(few(4, 8, 64, true), 43_904);
        assert_eq!(few(4, 8, 128, true), 86_272);
        // What a chip with 99 KB a block has for heads of 256.
        for (ring, is_q8) in [(4, false), (8, true)] {
            assert!(few(2, ring, 256, is_q8) + lists <= 99 << 10);
        }
        let cluster = |ranks, teams, dim, is_q8| {
            Cluster::new(ranks, teams, 2).shared_bytes(Heads { dim, is_q8 })
        };
        assert_eq!(cluster(8, 2, 64, false), 81_920);
        assert_eq!(cluster(4, 2, 64, true), 49_024);
        assert_eq!(cluster(2, 2, 64, false), 80_384);
        assert_eq!(cluster(8, 1, 128, false), 90_496);
        assert_eq!(cluster(8, 1, 256, true), 112_000);
    }
}
