//! Tile scheduling of kernels/gemm/gemm_sm90.cuh: number of blocks, tiles per block, and iterations
//! (turns).

use crate::lower::order::WIDE_TILES;

/// Tiles of a block that shares a multiprocessor with another (`WIDE_TILES_HALF`), and the maximum
/// rows of x of such a block.
pub(super) const HALF_TILES: u32 = 4;
const HALF_COLUMNS_MAX: u32 = 32;
/// The same if such blocks take several turns.
const HALF_TURNS_COLUMNS_MAX: u32 = 16;

/// The turns in which the blocks for one group of rows compute all tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns {
    /// Tiles per block and turn.
    pub(super) tiles: u32,
    pub(super) blocks: u32,
    /// Turns of the busiest block.
    pub(super) rounds: u32,
    /// Number of tiles in full waves, if the last wave is a half wave.
    pub(super) turn_tiles: Option<u32>,
}

impl Turns {
    /// A single turn; each block has one split.
    pub(super) fn single(tiles: u32, splits: u32) -> Self {
        let blocks = tiles.div_ceil(WIDE_TILES).max(1) * splits;
        Self { tiles: WIDE_TILES, blocks, rounds: 1, turn_tiles: None }
    }

    /// Turns of blocks that take all columns, on `multiprocessors` (at least one).
    pub(super) fn of(all: u32, columns: u32, multiprocessors: u32) -> Self {
        let multiprocessors = multiprocessors.max(1);
        let is_half = Self::is_half(all, columns, multiprocessors);
        // As many blocks as can be resident at once. If the tiles do not divide evenly, the first
        // blocks take one more turn.
        let (tiles, room) = match is_half {
            true => (HALF_TILES, 2 * multiprocessors),
            false => (WIDE_TILES, multiprocessors),
        };
        let groups = all.div_ceil(tiles);
        // The last wave is a half wave if that suffices.
        let whole = all / (tiles * room) * tiles * room;
        let is_enough = whole > 0 && (1..=HALF_TILES * room).contains(&(all - whole));
        Self {
            tiles,
            blocks: groups.min(room),
            rounds: groups.div_ceil(room),
            turn_tiles: (!is_half && is_enough).then_some(whole),
        }
    }

    /// Whether blocks have half as many tiles, with two blocks per multiprocessor: if all fit at
    /// once, or if the busiest multiprocessor then has fewer tiles.
    fn is_half(all: u32, columns: u32, multiprocessors: u32) -> bool {
        let halves = all.div_ceil(HALF_TILES);
        let (full, rest) = (halves / (2 * multiprocessors), halves % (2 * multiprocessors));
        let busiest = HALF_TILES * (2 * full + rest.div_ceil(multiprocessors));
        let of_whole = WIDE_TILES * all.div_ceil(WIDE_TILES).div_ceil(multiprocessors);
        halves <= 2 * multiprocessors && columns <= HALF_COLUMNS_MAX
            || busiest < of_whole && columns <= HALF_TURNS_COLUMNS_MAX
    }
}
