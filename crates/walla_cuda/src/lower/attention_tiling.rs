//! Attention on tensor cores (kernels/attention/attention.cuh): selects kernel, grid and shared
//! memory.

#[cfg(test)]
mod tests;

use walla_device::{CacheDesc, GpuFacts, HeadShape, KvType, Program};

/// Cells of one matrix instruction (`TILE`): a page holds a multiple of it.
const TILE: u32 = 16;
/// Cells whose weights share one maximum (`CHUNK`), and the tiles of a chunk (`TILES`).
const CHUNK: u32 = 64;
const TILES: u32 = CHUNK / TILE;
/// Chunks of a span (`SPAN`), which are reduced in order to one partial result.
const SPAN: u32 = 8;
/// Maximum chunks of a row for which blocks store one partial result per chunk (`CHUNKS_FEW`).
const CHUNKS_FEW: u32 = 32;
/// Columns of one matrix instruction (`COLUMNS`): query heads of one or more rows.
const COLUMNS: u32 = 8;
/// Minimum capacity for partial results (of chunks or spans) of all rows together, independent of
/// the size of the cache.
const SLOTS: u32 = 128;
/// Maximum spans per part of columns for which prompts can store partial results. A prompt with 40
/// spans (20,480 cells) before it is split as finely as the grid allows, one with 64 into at least
/// two KV splits, and one with more is not split.
const SPANS_OF_PROMPTS: u32 = 32;
/// Maximum visible cells of a row for a cluster of four blocks instead of eight, with heads of 64
/// and (large) of 128: at most one iteration of its teams.
const CELLS_OF_FOUR: u32 = 512;
const CELLS_OF_FOUR_LARGE: u32 = 256;
/// The same for clusters of two, with which more rows run at once. No row then occupies its cluster
/// for more than five iterations, or two with large heads.
const CELLS_OF_TWO: u32 = 1_280;
const CELLS_OF_TWO_LARGE: u32 = 512;
/// The same for all clusters. Beyond this, blocks of the whole GPU are faster with two rows, and
/// soon with one (`benches/results/cuda-step-bench.md`).
const CELLS_OF_MORE: u32 = 2_304;
/// Pipeline stages (chunks) of a cluster's team: one in use, one in flight (`Cluster::RING`).
const CLUSTER_RING: u32 = 2;
/// Rows of the longest step (`MAX_ROWS`).
const MAX_ROWS: u32 = 512;

/// Head shape and format in the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heads {
    dim: u32,
    /// 8 bits with a scale; otherwise f16.
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

    /// The part of kernel names for these heads.
    fn name(self) -> String {
        format!("{}_{}", if self.is_q8 { "q8" } else { "f16" }, self.dim)
    }
}

/// Warps per block, tiles of each warp's ring, and resident blocks per multiprocessor of an H200.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockShape {
    warps: u32,
    ring: u32,
    blocks: u32,
}

impl BlockShape {
    const fn new(warps: u32, ring: u32, blocks: u32) -> Self {
        Self { warps, ring, blocks }
    }

    /// Bytes of `DecodeAttention::Shared`, then four lists with one number per row and one more.
    /// Sized for the longest steps, since a kernel's maximum is set once.
    fn shared_bytes(self, heads: Heads) -> u32 {
        let Self { warps, ring, .. } = self;
        let tiles = warps * ring * heads.tile_bytes();
        // Sums of f16 are padded by four numbers; sums of 8-bit pages use another order.
        let stride = if heads.is_q8 { heads.dim } else { heads.dim + 4 };
        let sums = warps * COLUMNS * stride * 4;
        let spans = if warps > 2 { COLUMNS * (heads.dim * 4 + 8) } else { 32 };
        let statistics = 2 * warps * COLUMNS * 4;
        let sight = COLUMNS * 8;
        let shared = tiles + sums + spans + heads.row_bytes() + statistics + sight + 1;
        shared.next_multiple_of(128) + 4 * 4 * (MAX_ROWS + 1)
    }
}

/// Tilings of the decode and mixed kernels; tilings with more warps are listed before others.
fn tilings(heads: Heads) -> &'static [[BlockShape; 2]] {
    match (heads.dim, heads.is_q8) {
        (64, false) => const { &[[BlockShape::new(4, 4, 4), BlockShape::new(4, 8, 2)]] },
        (64, true) => const { &[[BlockShape::new(4, 8, 4), BlockShape::new(4, 8, 2)]] },
        (128, false) => const { &[[BlockShape::new(4, 4, 2); 2]] },
        (128, true) => const { &[[BlockShape::new(4, 8, 2); 2]] },
        (256, false) => const { &[[BlockShape::new(4, 4, 1); 2], [BlockShape::new(2, 4, 1); 2]] },
        (256, true) => const { &[[BlockShape::new(4, 4, 1); 2], [BlockShape::new(2, 8, 1); 2]] },
        _ => &[],
    }
}

/// Warps of a block of a cluster that are in no team (`cluster_helpers`).
const fn cluster_helpers(dim: u32) -> u32 {
    dim / 256 * TILES
}

/// A cluster of blocks that decodes a row together: number of blocks (ranks), teams of four warps
/// per block, and resident blocks per multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cluster {
    ranks: u32,
    teams: u32,
    blocks: u32,
}

impl Cluster {
    const fn new(ranks: u32, teams: u32, blocks: u32) -> Self {
        Self { ranks, teams, blocks }
    }

    /// Cluster configurations for steps of at most `most` rows x KV head groups with at most
    /// `cells` visible cells each, if a cluster is faster than blocks that reduce through memory.
    /// The best is first; the others are for GPUs on which it does not fit. A cluster is slow for a
    /// long row, alone or among short ones, so clusters are for short contexts. Fewer blocks
    /// synchronise sooner, if no team has many iterations.
    const fn of(heads: Heads, most: u32, cells: u32) -> &'static [Self] {
        match (heads.dim, heads.is_q8, most) {
            _ if cells > CELLS_OF_MORE => &[],
            (64, false, ..=8) if cells <= CELLS_OF_FOUR => const { &[Self::new(4, 2, 2)] },
            (64, false, 33..=128) if cells <= CELLS_OF_TWO => const { &[Self::new(2, 2, 2)] },
            (64, _, ..=8) | (128, true, ..=8) => const { &[Self::new(8, 2, 2)] },
            (64, _, ..=32) | (128, true, ..=16) => const { &[Self::new(4, 2, 2)] },
            (128, false, ..=16) if cells <= CELLS_OF_FOUR_LARGE => {
                const { &[Self::new(4, 2, 1), Self::new(8, 1, 2)] }
            }
            (128, false, ..=16) => const { &[Self::new(8, 1, 2)] },
            (128, false, ..=64) if cells <= CELLS_OF_TWO_LARGE => const { &[Self::new(2, 2, 1)] },
            (128, true, ..=64) if cells <= CELLS_OF_TWO_LARGE => const { &[Self::new(2, 2, 2)] },
            (256, false, ..=8) | (256, true, ..=16) => const { &[Self::new(8, 1, 1)] },
            _ => &[],
        }
    }

    /// Warps per block (`Cluster::WARPS`).
    const fn warps(self, heads: Heads) -> u32 {
        self.teams * TILES + cluster_helpers(heads.dim)
    }

    /// Bytes of `Cluster::Shared`.
    fn shared_bytes(self, heads: Heads) -> u32 {
        let Self { ranks, teams, .. } = self;
        let tiles = teams * CLUSTER_RING * 2 * TILES * heads.tile_bytes();
        let round = 4 * ranks;
        let products = heads.dim / 64;
        let sums = round * (2 * TILES / ranks) * products * 8 * COLUMNS * 4;
        let statistics = 2 * round * COLUMNS * 4;
        let making = self.warps(heads) * heads.dim * 4;
        let weights = teams * TILES * 32 * 8;
        let maxima = teams * TILES * COLUMNS * 4;
        let barrier = 8;
        let shared =
            tiles + sums + statistics + heads.row_bytes() + making + weights + maxima + barrier;
        shared.next_multiple_of(128)
    }
}

/// A kernel and its launch configuration.
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
    /// Groups of query heads; the heads of a group share one KV head.
    groups: u32,
    /// Query heads of the largest group: columns of a row.
    columns_of_row: u32,
    multiprocessors: u32,
    /// Chunks of all pages.
    cached_chunks: u32,
    decode: BlockShape,
    mixed: BlockShape,
    /// Maximum shared memory of a block in a cluster; 0 if the GPU has no clusters.
    max_cluster_bytes: u64,
}

impl Form {
    /// The form for these heads, pages and GPU; `None` if unsupported. All programs of a model have
    /// the same form, since its rounding differs from the plain kernels'. Only its speed depends on
    /// the program's rows.
    pub(super) fn of(
        facts: &GpuFacts,
        cache: &CacheDesc,
        program: &Program,
        shape: HeadShape,
    ) -> Option<Self> {
        let is_q8 = match cache.kv_type {
            KvType::F16 => false,
            KvType::Q8 => true,
            _ => return None,
        };
        // The kernels use 32-bit indices for the cells of all pages and heads.
        let cells = u64::from(cache.pages) * u64::from(cache.page_tokens);
        let is_countable = cells.saturating_mul(u64::from(shape.kv_heads)) <= u64::from(u32::MAX);
        if facts.compute_capability < (8, 0)
            || program.layout.max_rows > MAX_ROWS
            || !cache.page_tokens.is_multiple_of(TILE)
            || !is_countable
        {
            return None;
        }
        let heads = Heads { dim: shape.head_dim, is_q8 };
        let (groups, columns_of_row) = groups(shape)?;
        let fits = |bytes: u32| u64::from(bytes) <= facts.shared_bytes_per_block_optin;
        let both_fit =
            |both: &&[BlockShape; 2]| both.iter().all(|its| fits(its.shared_bytes(heads)));
        let [decode, mixed] = *tilings(heads).iter().find(both_fit)?;
        let has_clusters = facts.compute_capability >= (9, 0);
        let max_cluster_bytes = if has_clusters { facts.shared_bytes_per_block_optin } else { 0 };
        let multiprocessors = facts.multiprocessors.max(1);
        let cached_chunks = (cells / u64::from(CHUNK)) as u32;
        Some(Self {
            heads,
            groups,
            columns_of_row,
            multiprocessors,
            cached_chunks,
            decode,
            mixed,
            max_cluster_bytes,
        })
    }

    /// The decode kernel in clusters, if it is faster and all its blocks can be resident at once.
    pub(super) fn decode_in_clusters(
        &self,
        program: &Program,
        window: Option<u32>,
    ) -> Option<Chosen> {
        let cells = window.map_or(program.max_context, |window| window.min(program.max_context));
        let most = program.max_rows * self.groups;
        let fits = |its: &&Cluster| {
            u64::from(its.shared_bytes(self.heads)) <= self.max_cluster_bytes
                && most * its.ranks <= self.multiprocessors * its.blocks
        };
        let cluster = *Cluster::of(self.heads, most, cells).iter().find(fits)?;
        let Cluster { ranks, teams, .. } = cluster;
        Some(Chosen {
            file: "attention_cluster",
            name: format!("attention_cluster_{}_{ranks}x{teams}", self.heads.name()),
            grid: [ranks * self.groups, program.max_rows, 1],
            threads: 32 * cluster.warps(self.heads),
            shared_bytes: cluster.shared_bytes(self.heads),
        })
    }

    pub(super) fn decode(&self, program: &Program) -> Chosen {
        self.chosen("attention_decode", self.decode, program)
    }

    pub(super) fn mixed(&self, program: &Program) -> Chosen {
        self.chosen("attention_mixed", self.mixed, program)
    }

    /// Launches as many blocks as can be resident, but no more than the program's longest step can
    /// use.
    fn chosen(&self, file: &'static str, tiling: BlockShape, program: &Program) -> Chosen {
        let BlockShape { warps, ring, .. } = tiling;
        let shares = max_chunks(program).div_ceil(warps);
        let most = u64::from(program.max_rows) * u64::from(self.groups) * u64::from(shares);
        let blocks = most.min(u64::from(self.multiprocessors * tiling.blocks)) as u32;
        Chosen {
            file,
            name: format!("{file}_{}_{warps}x{ring}", self.heads.name()),
            grid: [blocks, 1, 1],
            threads: 32 * warps,
            shared_bytes: tiling.shared_bytes(self.heads),
        }
    }

    /// Maximum partial results (of chunks or spans) of all rows together that blocks can store for
    /// reduction by another block. Steps that are split over the whole GPU need this many. Rows
    /// that would store more get fewer KV splits.
    pub(super) fn max_slots(&self, program: &Program) -> u32 {
        let rows = u64::from(program.max_rows);
        // A row stores its chunks, if they are few, or its spans.
        let of_row = u64::from(max_chunks(program).div_ceil(SPAN).max(CHUNKS_FEW)) + 1;
        let blocks = self.multiprocessors * self.decode.blocks.max(self.mixed.blocks);
        // A row with n KV splits uses one slot for its first split and the spans of the others.
        // Rows are split if there are blocks for at least 1.5 times as many rows. They then have
        // two splits, which store the most.
        let useful = u64::from(blocks).div_ceil(u64::from(3 * self.groups)) * of_row + rows;
        // The cache limits them too, unless rows share pages.
        let cached = u64::from(self.cached_chunks.div_ceil(SPAN)) + u64::from(CHUNKS_FEW) * rows;
        let decoding = u64::from(SLOTS).max(useful.min(cached)).min(rows * of_row) as u32;
        if program.pure_decode {
            return decoding;
        }
        // Columns of prompts store spans in parts of COLUMNS columns.
        let spans = max_chunks(program).min(self.cached_chunks).div_ceil(SPAN);
        let parts = (program.max_rows * self.columns_of_row).div_ceil(COLUMNS);
        decoding.max(parts * spans.min(SPANS_OF_PROMPTS))
    }

    /// Bytes of `max_slots` partial results.
    pub(super) fn partials_bytes(&self, program: &Program) -> usize {
        let a_slot = self.groups * COLUMNS * (self.heads.dim + 2) * 4;
        self.max_slots(program) as usize * a_slot as usize
    }
}

/// Groups of query heads, and heads of the largest; `None` without KV heads.
fn groups(shape: HeadShape) -> Option<(u32, u32)> {
    let of_kv = shape.heads.checked_div(shape.kv_heads)?;
    Some((shape.kv_heads * of_kv.div_ceil(COLUMNS), of_kv.min(COLUMNS)))
}

fn max_chunks(program: &Program) -> u32 {
    program.max_context.div_ceil(CHUNK) + 1
}
