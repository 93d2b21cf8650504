//! Tile scheduling of kernels/gemm/gemm_sm90.cuh: number of blocks, tiles per block, and iterations
//! (waves).

use crate::lower::order::CTA_TILES;

/// Tiles of a block that shares a multiprocessor with another (`CTA_TILES_SMALL`), and the maximum
/// rows of x of such a block.
pub(super) const CTA_TILES_SMALL: u32 = 4;
const MAX_SMALL_ROWS: u32 = 32;
/// The same if such blocks take several waves.
const MAX_SMALL_WAVES_ROWS: u32 = 16;

/// The waves in which the blocks for one group of rows compute all tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct TileSchedule {
    /// Tiles per block and wave.
    pub(super) tiles: u32,
    pub(super) blocks: u32,
    /// Waves of the busiest block.
    pub(super) rounds: u32,
    /// Number of tiles in full waves, if the last wave is a half wave.
    pub(super) full_wave_tiles: Option<u32>,
}

impl TileSchedule {
    /// A single wave; each block has one split.
    pub(super) fn single(tiles: u32, splits: u32) -> Self {
        let blocks = tiles.div_ceil(CTA_TILES).max(1) * splits;
        Self { tiles: CTA_TILES, blocks, rounds: 1, full_wave_tiles: None }
    }

    /// Schedule of blocks that iterate over tiles, on `multiprocessors` (at least one).
    pub(super) fn of(all: u32, rows: u32, multiprocessors: u32) -> Self {
        let multiprocessors = multiprocessors.max(1);
        let is_half = Self::is_half(all, rows, multiprocessors);
        // As many blocks as can be resident at once. If the tiles do not divide evenly, the first
        // blocks take one more wave.
        let (tiles, room) = match is_half {
            true => (CTA_TILES_SMALL, 2 * multiprocessors),
            false => (CTA_TILES, multiprocessors),
        };
        let groups = all.div_ceil(tiles);
        // The last wave is a half wave if that suffices.
        let whole = all / (tiles * room) * tiles * room;
        let is_enough = whole > 0 && (1..=CTA_TILES_SMALL * room).contains(&(all - whole));
        Self {
            tiles,
            blocks: groups.min(room),
            rounds: groups.div_ceil(room),
            full_wave_tiles: (!is_half && is_enough).then_some(whole),
        }
    }

    /// Whether blocks have half as many tiles, with two blocks per multiprocessor: if all fit at
    /// once, or if the busiest multiprocessor then has fewer tiles.
    fn is_half(all: u32, rows: u32, multiprocessors: u32) -> bool {
        let halves = all.div_ceil(CTA_TILES_SMALL);
        let (full, rest) = (halves / (2 * multiprocessors), halves % (2 * multiprocessors));
        let busiest = CTA_TILES_SMALL * (2 * full + rest.div_ceil(multiprocessors));
        let of_whole = CTA_TILES * all.div_ceil(CTA_TILES).div_ceil(multiprocessors);
        halves <= 2 * multiprocessors && rows <= MAX_SMALL_ROWS
            || busiest < of_whole && rows <= MAX_SMALL_WAVES_ROWS
    }
}
