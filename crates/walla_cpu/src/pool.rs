//! Cuts the output of an op into tiles and has them filled.

use std::marker::PhantomData;
use std::slice;

/// A rectangle of a row-major `[rows, width]` array that one worker alone may write.
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
    /// Row `row` of the rectangle (counted from the rectangle's first): `cols` numbers.
    #[expect(
        unsafe_code,
        reason = "tiles of one array interleave, so no safe slice can split them"
    )]
    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row {row} of a tile of {} rows", self.rows);
        // SAFETY: `Grid::tile` made the rectangle lie within the array, and `row < rows`.
        let start = unsafe { self.first.add(row * self.width) };
        // SAFETY: the `cols` numbers from there lie in the array's row. `Grid` hands out every tile once, tiles do not overlap, and
        // `&mut self` keeps a second slice of this tile from living at the same time.
        unsafe { slice::from_raw_parts_mut(start, self.cols) }
    }
}

/// An array cut into tiles of `tile_rows` x `tile_cols`, the last ones of each direction smaller.
struct Grid<'a, T> {
    first: *mut T,
    rows: usize,
    width: usize,
    tile_rows: usize,
    tile_cols: usize,
    array: PhantomData<&'a mut [T]>,
}

#[expect(unsafe_code, reason = "a raw pointer is not Sync by itself")]
// SAFETY: a `Grid` only hands out disjoint parts of an array of `T: Send` that it borrows exclusively.
unsafe impl<T: Send> Sync for Grid<'_, T> {}

impl<'a, T> Grid<'a, T> {
    fn new(array: &'a mut [T], width: usize, tile_rows: usize, tile_cols: usize) -> Self {
        assert!(width > 0 && tile_rows > 0 && tile_cols > 0, "an empty tile");
        assert_eq!(array.len() % width, 0, "whole rows");
        let rows = array.len() / width;
        Self { first: array.as_mut_ptr(), rows, width, tile_rows, tile_cols, array: PhantomData }
    }

    fn tiles_across(&self) -> usize {
        self.width.div_ceil(self.tile_cols)
    }

    fn tiles(&self) -> usize {
        self.rows.div_ceil(self.tile_rows) * self.tiles_across()
    }

    /// Tile `index`.
    ///
    /// # Safety
    /// No index is asked for twice while tiles live.
    #[expect(unsafe_code, reason = "see the safety section")]
    unsafe fn tile(&self, index: usize) -> Tile<'a, T> {
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

/// What runs the tiles of an op.
pub(crate) struct Pool {
    workers: usize,
}

impl Pool {
    /// A pool that runs everything on the calling thread.
    pub(crate) fn inline() -> Self {
        Self { workers: 1 }
    }

    /// Threads that may work at the same time, the caller's included: the bound of a worker's number.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// Calls `fill(worker, tile)` for every tile of `array`, a row-major `[rows, width]`.
    ///
    /// The result must not depend on the order, nor on the worker's number, which is for scratch memory.
    pub(crate) fn grid<T: Send>(
        &self,
        array: &mut [T],
        width: usize,
        (tile_rows, tile_cols): (usize, usize),
        fill: &(dyn Fn(usize, &mut Tile<'_, T>) + Sync),
    ) {
        let grid = Grid::new(array, width, tile_rows, tile_cols);
        self.each(grid.tiles(), &|worker, index| {
            #[expect(unsafe_code, reason = "the pool is what keeps tiles apart")]
            // SAFETY: `each` calls every index once.
            let mut tile = unsafe { grid.tile(index) };
            fill(worker, &mut tile);
        });
    }

    /// Calls `work(worker, index)` once for every index below `count`.
    fn each(&self, count: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        for index in 0..count {
            work(0, index);
        }
    }
}

/// Rows in a tile when a row costs about `width` simple operations: enough that a tile is worth a claim.
pub(crate) fn rows_per_tile(width: usize) -> usize {
    (8192 / width.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_belongs_to_exactly_one_tile() {
        let pool = Pool::inline();
        for (rows, width, tile) in [(5, 7, (2, 3)), (1, 1, (4, 4)), (6, 4, (3, 2)), (0, 3, (1, 1))]
        {
            let mut array = vec![0_u32; rows * width];
            pool.grid(&mut array, width, tile, &|_, tile| {
                for row in 0..tile.rows {
                    tile.row_mut(row).iter_mut().for_each(|x| *x += 1);
                }
            });
            assert!(array.iter().all(|&x| x == 1), "{rows} {width} {tile:?}: {array:?}");
        }
    }

    #[test]
    #[should_panic(expected = "row 2 of a tile of 2 rows")]
    fn a_tile_keeps_to_its_rows() {
        Pool::inline().grid(&mut [0; 8], 2, (2, 2), &|_, tile| tile.row_mut(2)[0] = 1);
    }
}
