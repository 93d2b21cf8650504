//! Splits an array into rectangles that workers can write at the same time.

use std::marker::PhantomData;
use std::slice;

/// A rectangle of a row-major `[rows, width]` array, writable by one worker only.
pub(crate) struct Tile<'a, T> {
    first: *mut T,
    width: usize,
    /// First row of the rectangle in the array.
    pub row: usize,
    /// Rows of the rectangle.
    pub rows: usize,
    /// First column of the rectangle in the array.
    pub col: usize,
    /// Columns of the rectangle.
    pub cols: usize,
    array: PhantomData<&'a mut [T]>,
}

impl<T> Tile<'_, T> {
    /// Row `row` of the rectangle, relative to its first row: `cols` numbers.
    #[expect(
        unsafe_code,
        reason = "tiles of one array interleave, so no safe slice can split them"
    )]
    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row {row} of a tile of {} rows", self.rows);
        // SAFETY: `Grid::tile` keeps the rectangle within the array, and `row < rows`.
        let start = unsafe { self.first.add(row * self.width) };
        // SAFETY: the `cols` numbers from `start` on are within the array's row. `Grid` returns
        // every tile once, tiles do not overlap, and `&mut self` prevents a second slice of this
        // tile.
        unsafe { slice::from_raw_parts_mut(start, self.cols) }
    }
}

/// An array split into tiles of `tile_rows` x `tile_cols`; the last ones in each direction are
/// smaller.
pub(crate) struct Grid<'a, T> {
    first: *mut T,
    rows: usize,
    width: usize,
    tile_rows: usize,
    tile_cols: usize,
    array: PhantomData<&'a mut [T]>,
}

#[expect(unsafe_code, reason = "a raw pointer is not Sync")]
// SAFETY: a `Grid` only returns disjoint parts of an array of `T: Send` that it borrows
// exclusively.
unsafe impl<T: Send> Sync for Grid<'_, T> {}

impl<'a, T> Grid<'a, T> {
    pub(crate) fn new(
        array: &'a mut [T],
        width: usize,
        tile_rows: usize,
        tile_cols: usize,
    ) -> Self {
        assert!(width > 0 && tile_rows > 0 && tile_cols > 0, "an empty tile");
        assert_eq!(array.len() % width, 0, "whole rows");
        let rows = array.len() / width;
        Self { first: array.as_mut_ptr(), rows, width, tile_rows, tile_cols, array: PhantomData }
    }

    fn tiles_across(&self) -> usize {
        self.width.div_ceil(self.tile_cols)
    }

    /// Number of tiles.
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(self.tile_rows) * self.tiles_across()
    }

    /// Tile `index`.
    ///
    /// # Safety
    /// No index may be requested twice while its tile is alive.
    #[expect(unsafe_code, reason = "see the safety section")]
    pub(crate) unsafe fn tile(&self, index: usize) -> Tile<'a, T> {
        assert!(index < self.tiles(), "tile {index} of {}", self.tiles());
        let row = index / self.tiles_across() * self.tile_rows;
        let col = index % self.tiles_across() * self.tile_cols;
        Tile {
            // SAFETY: `row < rows` and `col < width` because `index < tiles()`.
            first: unsafe { self.first.add(row * self.width + col) },
            width: self.width,
            row,
            rows: self.tile_rows.min(self.rows - row),
            col,
            cols: self.tile_cols.min(self.width - col),
            array: PhantomData,
        }
    }
}
