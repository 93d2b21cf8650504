//! Vectors of entries and the exact search for the most similar ones.
//!
//! Each vector exists twice: as f32 of length 1, and as [i8 codes](codes) with a scale, which take
//! a quarter of the memory. A search scans the codes, keeps the vectors whose upper bound reaches
//! the k-th best lower bound, and computes their similarity in f32. The result is the one of a scan
//! of all f32 vectors, because the bounds hold for every vector.

mod codes;
mod dot;
mod products;

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

use codes::{Codes, QueryCodes};
pub(crate) use dot::dot;

use crate::VectorError;
use crate::total::Total;

/// Largest number of dimensions of a vector.
pub const MAX_DIMENSIONS: usize = 8_192;

/// A slot without a vector.
const NONE: u32 = u32::MAX;

/// A slot of the store with its cosine similarity to the query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Similar {
    pub(crate) slot: u32,
    pub(crate) cosine: f32,
}

/// Vectors by row, without gaps. Rows are in any order: the last row replaces a removed one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vectors {
    model: Option<Arc<str>>,
    /// 0: not fixed yet.
    dimensions: usize,
    slots: Vec<u32>,
    rows: Vec<u32>,
    /// `rows x dimensions`, each row of length 1.
    values: Vec<f32>,
    codes: Codes,
}

impl Vectors {
    pub(crate) fn model(&self) -> Option<&Arc<str>> {
        self.model.as_ref()
    }

    pub(crate) fn dimensions(&self) -> Option<usize> {
        (self.dimensions > 0).then_some(self.dimensions)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of vectors and codes.
    pub(crate) fn bytes(&self) -> u64 {
        size_of_val(self.values.as_slice()) as u64 + self.codes.bytes()
    }

    /// Removes all vectors and the dimension, and sets the model.
    pub(crate) fn reset(&mut self, model: Option<Arc<str>>) {
        *self = Self { model, ..Self::default() };
    }

    /// The row of a slot.
    fn row(&self, slot: u32) -> Option<usize> {
        self.rows.get(slot as usize).filter(|&&row| row != NONE).map(|&row| row as usize)
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&[f32]> {
        self.row(slot).and_then(|row| self.value(row))
    }

    fn value(&self, row: usize) -> Option<&[f32]> {
        let start = row * self.dimensions;
        self.values.get(start..start + self.dimensions)
    }

    /// Checks the length of a vector for this table.
    pub(crate) fn check_length(&self, given: usize) -> Result<(), VectorError> {
        if given == 0 || given > MAX_DIMENSIONS {
            return Err(VectorError::Dimensions { given, most: MAX_DIMENSIONS });
        }
        match self.dimensions() {
            Some(expected) if expected != given => Err(VectorError::Length { given, expected }),
            _ => Ok(()),
        }
    }

    /// Sets the vector of a slot: length 1, and [`check_length`](Self::check_length) accepted it.
    pub(crate) fn set(&mut self, slot: u32, unit: &[f32]) {
        self.dimensions = unit.len();
        if let Some(row) = self.row(slot) {
            let start = row * self.dimensions;
            if let Some(old) = self.values.get_mut(start..start + unit.len()) {
                old.copy_from_slice(unit);
            }
            self.codes.replace(row, unit);
            return;
        }
        let at = slot as usize;
        if self.rows.len() <= at {
            self.rows.resize(at + 1, NONE);
        }
        if let Some(row) = self.rows.get_mut(at) {
            *row = self.slots.len() as u32;
        }
        self.slots.push(slot);
        self.values.extend_from_slice(unit);
        self.codes.push(unit);
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        let Some(row) = self.row(slot) else { return };
        let last = self.slots.len() - 1;
        self.slots.swap_remove(row);
        self.codes.swap_remove(row, self.dimensions);
        self.values.copy_within(last * self.dimensions.., row * self.dimensions);
        self.values.truncate(last * self.dimensions);
        if let Some(row) = self.rows.get_mut(slot as usize) {
            *row = NONE;
        }
        if let Some(&moved) = self.slots.get(row)
            && let Some(of_moved) = self.rows.get_mut(moved as usize)
        {
            *of_moved = row as u32;
        }
        if self.values.len() < self.values.capacity() / 4 {
            self.values.shrink_to(2 * self.values.len());
            self.codes.shrink();
        }
    }

    /// The `most` permitted vectors with the highest cosine similarity to `query` (length 1) of at
    /// least `cosine_min`: first by similarity, then by `order`, ascending.
    pub(crate) fn search<K: Ord>(
        &self,
        query: &[f32],
        most: usize,
        cosine_min: f32,
        is_permitted: impl Fn(u32) -> bool,
        order: impl Fn(u32) -> K,
    ) -> Vec<Similar> {
        if most == 0 || self.slots.is_empty() {
            return Vec::new();
        }
        let candidates = self.candidates(query, most, cosine_min, is_permitted);
        let similar = candidates.into_iter().filter_map(|row| {
            let cosine = dot(query, self.value(row)?);
            Some(Similar { slot: *self.slots.get(row)?, cosine })
        });
        let mut found: Vec<Similar> = similar.filter(|of| of.cosine >= cosine_min).collect();
        let by_rank = |a: &Similar, b: &Similar| -> Ordering {
            b.cosine.total_cmp(&a.cosine).then_with(|| order(a.slot).cmp(&order(b.slot)))
        };
        found.sort_unstable_by(by_rank);
        found.truncate(most);
        found
    }

    /// Rows that may be among the best. A row is left out only if its upper bound is below
    /// `cosine_min` or below the lower bounds of `most` others.
    fn candidates(
        &self,
        query: &[f32],
        most: usize,
        cosine_min: f32,
        is_permitted: impl Fn(u32) -> bool,
    ) -> Vec<usize> {
        let query = QueryCodes::new(query);
        // The best lower bounds, the smallest on top.
        let mut best: BinaryHeap<Reverse<Total>> = BinaryHeap::new();
        let mut threshold = f64::from(cosine_min);
        let mut candidates: Vec<(f64, usize)> = Vec::new();
        self.codes.scan(&query, |row, bounds| {
            let is_open = bounds.upper >= threshold;
            if !is_open || !self.slots.get(row).is_some_and(|&slot| is_permitted(slot)) {
                return;
            }
            candidates.push((bounds.upper, row));
            best.push(Reverse(Total(bounds.lower)));
            if best.len() > most {
                best.pop();
            }
            if best.len() == most
                && let Some(Reverse(Total(lower))) = best.peek()
            {
                threshold = threshold.max(*lower);
            }
        });
        candidates.retain(|(upper, _)| *upper >= threshold);
        candidates.into_iter().map(|(_, row)| row).collect()
    }
}

/// The vector divided by its Euclidean length, which is computed in f64.
///
/// # Errors
/// A component is not finite, or all are zero.
pub(crate) fn normalized(vector: &[f32]) -> Result<Vec<f32>, VectorError> {
    if let Some(index) = vector.iter().position(|component| !component.is_finite()) {
        return Err(VectorError::NotFinite { index });
    }
    let length = length(vector);
    if length == 0.0 {
        return Err(VectorError::Zero);
    }
    Ok(vector.iter().map(|&component| (f64::from(component) / length) as f32).collect())
}

/// Euclidean length. No f32 can overflow here: squares are below 1e77.
pub(crate) fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|&component| f64::from(component).powi(2)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests;
