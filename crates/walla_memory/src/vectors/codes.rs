//! Compact copies of vectors, and bounds of scalar products that hold for them.
//!
//! A vector `v` of length 1 has codes `q[i] = round(v[i] / s)` with `s = max |v[i]| / 127`, and
//! the error `e = v - s q`. A query `u` of length 1 has codes `p` of up to 16 bits with the scale
//! `t` and the error `f = u - t p`. Then
//!
//! ```text
//! u v = (t p + f) v = t p (s q + e) + f v
//!     = t s (p q) + (u - f) e + f v = t s (p q) + u e + f (s q)
//! |u v - t s (p q)| <= |u| |e| + |f| |s q| <= |u| |e| + |f| (|v| + |e|)    (Cauchy-Schwarz)
//! ```
//!
//! The f32 product that ranks differs from `u v` by at most `n 2^-24 |u| |v|` to first order for
//! `n` dimensions (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, section
//! 3.1); twice as much is added. `p q` is an exact i32.

use super::products::products;

/// Largest code of a vector.
const MAX_CODE: f64 = 127.0;

/// Length of a normalised vector after its rounding to f32, at most.
const MAX_LENGTH: f64 = 1.0 + 1e-6;

/// For what rounding in f64 adds to a bound.
const SLACK: f64 = 1e-9;

/// Rows of a block of the scan.
const BLOCK: usize = 64;

/// Bounds of a similarity in f32.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) lower: f64,
    pub(super) upper: f64,
}

/// Codes of all rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Codes {
    /// `rows x dimensions`.
    codes: Vec<i8>,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    scale: f32,
    /// Upper bound of the length of the error.
    error: f32,
}

/// Codes of a query.
#[derive(Debug)]
pub(super) struct QueryCodes {
    codes: Vec<i16>,
    scale: f64,
    /// Upper bound of the length of the error.
    error: f64,
    /// Upper bound of what f32 arithmetic adds.
    rounding: f64,
}

impl QueryCodes {
    /// Codes as large as an i32 sum over all dimensions allows.
    pub(super) fn new(query: &[f32]) -> Self {
        let dimensions = query.len().max(1);
        let max_code = f64::from(i32::MAX) / (MAX_CODE * dimensions as f64);
        let max_code = max_code.floor().min(f64::from(i16::MAX));
        let largest = largest(query);
        let scale = largest / max_code;
        let code = |&component: &f32| quotient(f64::from(component), scale, max_code) as i16;
        let codes: Vec<i16> = query.iter().map(code).collect();
        let errors = query.iter().zip(&codes);
        let errors = errors.map(|(&of, &code)| f64::from(of) - scale * f64::from(code));
        let error = errors.map(|error| error * error).sum::<f64>().sqrt();
        let rounding = dimensions as f64 * f64::from(f32::EPSILON);
        Self { codes, scale, error: error * MAX_LENGTH, rounding }
    }

    /// Bounds from the product of the codes.
    fn bounds(&self, row: &Row, product: i32) -> Bounds {
        let middle = self.scale * f64::from(row.scale) * f64::from(product);
        let error = f64::from(row.error);
        let error = MAX_LENGTH * error + self.error * (MAX_LENGTH + error);
        let error = error + self.rounding + SLACK;
        Bounds { lower: middle - error, upper: middle + error }
    }
}

impl Codes {
    pub(super) fn bytes(&self) -> u64 {
        self.codes.len() as u64 + size_of_val(self.rows.as_slice()) as u64
    }

    pub(super) fn push(&mut self, unit: &[f32]) {
        let start = self.codes.len();
        self.codes.resize(start + unit.len(), 0);
        if let Some(codes) = self.codes.get_mut(start..) {
            self.rows.push(encode(unit, codes));
        }
    }

    pub(super) fn replace(&mut self, row: usize, unit: &[f32]) {
        let start = row * unit.len();
        let codes = self.codes.get_mut(start..start + unit.len());
        if let Some((codes, row)) = codes.zip(self.rows.get_mut(row)) {
            *row = encode(unit, codes);
        }
    }

    /// Replaces the row by the last one.
    pub(super) fn swap_remove(&mut self, row: usize, dimensions: usize) {
        self.rows.swap_remove(row);
        let last = self.rows.len() * dimensions;
        self.codes.copy_within(last.., row * dimensions);
        self.codes.truncate(last);
    }

    pub(super) fn shrink(&mut self) {
        self.codes.shrink_to(2 * self.codes.len());
        self.rows.shrink_to(2 * self.rows.len());
    }

    /// Calls `found` with the bounds of each row.
    pub(super) fn scan(&self, query: &QueryCodes, mut found: impl FnMut(usize, Bounds)) {
        let block_codes = BLOCK * query.codes.len().max(1);
        let blocks = self.codes.chunks(block_codes).zip(self.rows.chunks(BLOCK));
        let mut at = 0;
        for (codes, rows) in blocks {
            let mut sums = [0; BLOCK];
            products(codes, &query.codes, &mut sums);
            for (row, sum) in rows.iter().zip(sums) {
                found(at, query.bounds(row, sum));
                at += 1;
            }
        }
    }
}

/// Writes the codes of a vector.
fn encode(unit: &[f32], codes: &mut [i8]) -> Row {
    let scale = (largest(unit) / MAX_CODE) as f32;
    let mut squares = 0.0;
    for (code, &component) in codes.iter_mut().zip(unit) {
        let component = f64::from(component);
        *code = quotient(component, f64::from(scale), MAX_CODE) as i8;
        let error = component - f64::from(scale) * f64::from(*code);
        squares += error * error;
    }
    // Rounded up, and for the rounding of the sum.
    let error = (squares.sqrt() * MAX_LENGTH) as f32;
    Row { scale, error: error.next_up() }
}

fn largest(vector: &[f32]) -> f64 {
    f64::from(vector.iter().fold(0.0_f32, |most, component| most.max(component.abs())))
}

fn quotient(component: f64, scale: f64, max_code: f64) -> f64 {
    (component / scale).round().clamp(-max_code, max_code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::{dot, normalized};

    #[test]
    fn bounds_hold_and_are_tight() {
        for dimensions in [1, 2, 7, 64, 384, 1_024, 8_192] {
            let mut state = 1_u64;
            let mut vector = || -> Vec<f32> {
                let number = |_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 40) as f32 / (1 << 23) as f32 - 1.0
                };
                normalized(&(0..dimensions).map(number).collect::<Vec<_>>()).unwrap()
            };
            let query = vector();
            let rows: Vec<Vec<f32>> = (0..50).map(|_| vector()).chain([query.clone()]).collect();
            let mut codes = Codes::default();
            rows.iter().for_each(|row| codes.push(row));
            codes.scan(&QueryCodes::new(&query), |at, bounds| {
                let exact = f64::from(dot(&query, &rows[at]));
                assert!(bounds.lower <= exact && exact <= bounds.upper, "{exact} {bounds:?}");
                // The codes of 8,192 dimensions of the query are small, and f32 rounds more.
                assert!(bounds.upper - bounds.lower < 0.05, "{dimensions}: {bounds:?}");
            });
        }
    }

    #[test]
    fn the_largest_sum_fits() {
        for dimensions in [1, 384, 4_096, 8_192] {
            let unit = normalized(&vec![1.0; dimensions]).unwrap();
            let mut codes = Codes::default();
            codes.push(&unit);
            codes.scan(&QueryCodes::new(&unit), |_, bounds| {
                assert!(bounds.lower < 1.0 && bounds.upper > 1.0, "{bounds:?}");
            });
        }
    }

    #[test]
    fn tiny_components_do_not_divide_by_zero() {
        // A scale of the smallest f32 numbers: the codes are clamped, the error holds the rest.
        let unit = [1.0, 1e-45, 0.0];
        let mut codes = Codes::default();
        codes.push(&unit);
        codes.scan(&QueryCodes::new(&unit), |_, bounds| {
            assert!(bounds.lower.is_finite() && bounds.upper >= 1.0);
        });
    }
}
