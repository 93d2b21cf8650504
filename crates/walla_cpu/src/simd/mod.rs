//! Kernels with vector instructions. Each is tested against a plain Rust counterpart.
//!
//! Rules that make a result independent of the batch:
//! 1. The product of one weight row and one activation row is one chain of operations in the order
//!    of the columns. The number of activation rows only determines the number of parallel chains.
//! 2. Integer parts are exact, so their order is free.

pub(crate) mod attention;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx_vnni;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_dot;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_i8mm;
#[cfg(test)]
mod tests;
mod unpack;

use walla_types::blocks;

use crate::panels::of_code;
use crate::quantize::Group;

/// A range of rows of a block of rounded activations.
#[derive(Clone, Copy)]
struct Rows<'a> {
    /// `[groups, all]`
    groups: &'a [Group],
    all: usize,
    first: usize,
}

/// Whether the type has two sub-blocks in a group.
const fn has_halves(ty: u32) -> bool {
    blocks::subs_of_group(of_code(ty)) == 2
}

/// [`blocks::is_signed`].
const fn is_signed(ty: u32) -> bool {
    blocks::is_signed(of_code(ty))
}

/// The type's table, each number plus `OFFSET`, which wraps around: 128 for instructions that take
/// unsigned bytes. Zeros for a type without a table.
const fn table<const OFFSET: u8>(ty: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    let Some(table) = of_code(ty).table() else { return bytes };
    let mut i = 0;
    while i < 16 {
        bytes[i] = table[i].cast_unsigned().wrapping_add(OFFSET);
        i += 1;
    }
    bytes
}

/// Calls `$kernel::<TYPE, ROWS>` for a type and a number of rows that are known only at run time:
/// up to `$max` rows, or for `blocks` a number that [`block_of`] returns.
macro_rules! by_type_and_rows {
    ($kernel:ident, [$($ty:ident),+], $given:expr, $rows:expr, $max:tt, $args:tt) => {
        match $given {
            $(TensorType::$ty => by_type_and_rows!(@$max $kernel, $ty, $rows, $args),)+
            other => unreachable!("{other} has another kernel"),
        }
    };
    (@4 $kernel:ident, $ty:ident, $rows:expr, $args:tt) => {
        match $rows {
            1 => by_type_and_rows!(@call $kernel, $ty, 1, $args),
            2 => by_type_and_rows!(@call $kernel, $ty, 2, $args),
            3 => by_type_and_rows!(@call $kernel, $ty, 3, $args),
            _ => by_type_and_rows!(@call $kernel, $ty, 4, $args),
        }
    };
    (@blocks $kernel:ident, $ty:ident, $rows:expr, $args:tt) => {
        match $rows {
            8 => by_type_and_rows!(@call $kernel, $ty, 8, $args),
            _ => by_type_and_rows!(@4 $kernel, $ty, $rows, $args),
        }
    };
    (@8 $kernel:ident, $ty:ident, $rows:expr, $args:tt) => {
        match $rows {
            5 => by_type_and_rows!(@call $kernel, $ty, 5, $args),
            6 => by_type_and_rows!(@call $kernel, $ty, 6, $args),
            7 => by_type_and_rows!(@call $kernel, $ty, 7, $args),
            8 => by_type_and_rows!(@call $kernel, $ty, 8, $args),
            _ => by_type_and_rows!(@4 $kernel, $ty, $rows, $args),
        }
    };
    (@call $kernel:ident, $ty:ident, $rows:literal, ($($arg:expr),*)) => {
        $kernel::<{ code(TensorType::$ty) }, $rows>($($arg),*)
    };
}
use by_type_and_rows;

/// Rows of the next block of at most eight rows: 8, or up to 4, because registers are few. Blocks
/// of nearly equal size share unpacked weights best.
const fn block_of(rows: usize) -> usize {
    match rows {
        0..=4 => rows,
        5 | 6 => 3,
        7 => 4,
        _ => 8,
    }
}

/// The first `cols` numbers of the first `R` rows, which are `stride` apart; the caller guarantees
/// that they exist.
///
/// Not `from_fn`, whose closure would be a call: it is compiled without the caller's instructions.
#[inline(always)]
fn rows_of<const R: usize>(all: &[f32], stride: usize, cols: usize) -> [&[f32]; R] {
    let mut rows: [&[f32]; R] = [&[]; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &all[r * stride..][..cols];
    }
    rows
}

/// Prefetch distance of weights: the bytes that memory delivers in 0.4 µs, its latency under load
/// with a page walk. Measured with one row and Q4_K on one thread: 4 KiB 30, 8 KiB 43, 16 KiB 48
/// GB/s. On Arm, where 10 GB/s are usual and first caches are small, not measured.
const PREFETCH_BYTES: usize = if cfg!(target_arch = "x86_64") { 16384 } else { 4096 };

/// Prefetches the panel a fixed distance after `at..at + bytes`: with many rows the hardware
/// prefetcher does not reach that far. `bytes` is a constant where this is inlined, so the loop is
/// unrolled: a count that varies would be mispredicted.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse"))]
fn prefetch(panel: &[u8], at: usize, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        prefetch_line(panel.as_ptr().wrapping_add(at + 64 * line + PREFETCH_BYTES));
    }
}

/// Hint that the cache line at an address is read soon. Any address is allowed.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "sse")]
fn prefetch_line(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    _mm_prefetch::<_MM_HINT_T0>(at.cast());
}

/// Hint that the cache line at an address is read soon. Any address is allowed.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
#[expect(unsafe_code, reason = "Rust has no stable intrinsic for it yet")]
fn prefetch_line(at: *const u8) {
    // SAFETY: a hint; at an address that cannot be read it does nothing.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags));
    }
}
