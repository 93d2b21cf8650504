//! Checked access to a file's hyperparameters and tensors.

use core::{cell::RefCell, fmt, ops::RangeInclusive};

use super::SpecError;
use crate::{
    gguf::{FromValue, Gguf, Integers, Shape, Value},
    spec::{Architecture, Bands, Linear, Matrix, RmsNorm, Vector},
};

/// Range of factors and bases: products of several stay finite in an `f32`.
pub(super) const POSITIVE: RangeInclusive<f32> = 1e-9..=1e15;
pub(super) const POSITIVE_TEXT: &str = "a positive number (1e-9 to 1e15)";

/// A file, as seen by one architecture. It records which tensors were requested, so that no tensor
/// is ignored silently.
pub(super) struct Source<'a> {
    pub gguf: &'a Gguf,
    pub architecture: Architecture,
    used: RefCell<Vec<bool>>,
}

impl<'a> Source<'a> {
    pub fn new(gguf: &'a Gguf, architecture: Architecture) -> Self {
        Self { gguf, architecture, used: RefCell::new(vec![false; gguf.tensors().len()]) }
    }

    /// `attention.head_count` → `llama.attention.head_count`.
    pub fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    pub fn find<T: FromValue<'a>>(&self, suffix: &str) -> Result<Option<T>, SpecError> {
        Ok(self.gguf.find(&self.key(suffix))?)
    }

    /// A required count, in `range`.
    pub fn size(&self, suffix: &str, range: RangeInclusive<usize>) -> Result<usize, SpecError> {
        let count: u32 = self.gguf.require(&self.key(suffix))?;
        self.within(suffix, count as usize, &range)
    }

    /// A count in `range`, or `default` (unchecked) if the key is missing.
    pub fn size_or(
        &self,
        suffix: &str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> Result<usize, SpecError> {
        match self.find::<u32>(suffix)? {
            Some(count) => self.within(suffix, count as usize, &range),
            None => Ok(default),
        }
    }

    /// One count for all layers, or an array with one count per layer.
    pub fn sizes(
        &self,
        suffix: &str,
        layers: usize,
        range: RangeInclusive<usize>,
    ) -> Result<Option<Vec<usize>>, SpecError> {
        let Some(Value::Array(_)) = self.gguf.get(&self.key(suffix)) else {
            let count: Option<u32> = self.find(suffix)?;
            let count = count.map(|c| self.within(suffix, c as usize, &range)).transpose()?;
            return Ok(count.map(|count| vec![count; layers]));
        };
        let counts: Integers<'_> = self.gguf.require(&self.key(suffix))?;
        if counts.len() != layers {
            let expected = format!("one value or {layers}, as many as layers");
            return Err(self.wrong(suffix, format!("{} values", counts.len()), expected));
        }
        let checked = counts.iter().map(|count| {
            let fitting = usize::try_from(count).ok().filter(|count| range.contains(count));
            fitting.ok_or_else(|| self.wrong(suffix, count, in_words(&range)))
        });
        checked.collect::<Result<_, _>>().map(Some)
    }

    /// A float above zero, or `default` if the key is missing.
    pub fn positive_or(&self, suffix: &str, default: f64) -> Result<f64, SpecError> {
        match self.find::<f32>(suffix)? {
            Some(x) => self.positive(suffix, x),
            None => Ok(default),
        }
    }

    /// A factor, or `None` if it is missing or 0, as in llama.cpp.
    pub fn factor(&self, suffix: &str) -> Result<Option<f64>, SpecError> {
        let found = self.find::<f32>(suffix)?.filter(|&x| x != 0.0);
        found.map(|x| self.positive(suffix, x)).transpose()
    }

    /// The epsilon of norms.
    pub fn eps(&self, suffix: &str) -> Result<f32, SpecError> {
        let eps: f32 = self.gguf.require(&self.key(suffix))?;
        let is_sound = eps > 0.0 && eps < 1.0;
        if is_sound { Ok(eps) } else { Err(self.wrong(suffix, eps, "between 0 and 1")) }
    }

    /// An even number of dimensions up to the default.
    pub fn even_or(&self, suffix: &str, default: usize) -> Result<usize, SpecError> {
        let found = self.size_or(suffix, default, 2..=default)?;
        let is_even = found.is_multiple_of(2);
        if is_even { Ok(found) } else { Err(self.wrong(suffix, found, "an even number")) }
    }

    /// Checks a float that multiplies or divides.
    pub fn positive(&self, suffix: &str, x: f32) -> Result<f64, SpecError> {
        if POSITIVE.contains(&x) { Ok(x.into()) } else { Err(self.wrong(suffix, x, POSITIVE_TEXT)) }
    }

    pub fn within(
        &self,
        suffix: &str,
        count: usize,
        range: &RangeInclusive<usize>,
    ) -> Result<usize, SpecError> {
        if range.contains(&count) {
            return Ok(count);
        }
        Err(self.wrong(suffix, count, in_words(range)))
    }

    pub fn wrong(
        &self,
        suffix: &str,
        found: impl fmt::Display,
        expected: impl Into<String>,
    ) -> SpecError {
        let (key, found) = (self.key(suffix), found.to_string());
        SpecError::Hyperparameter { key, found, expected: expected.into() }
    }

    pub fn unsupported(
        &self,
        suffix: &str,
        found: impl fmt::Display,
        feature: &'static str,
    ) -> SpecError {
        SpecError::Unsupported { key: self.key(suffix), found: found.to_string(), feature }
    }

    /// The shape of an optional tensor.
    pub fn shape(&self, name: &str) -> Option<Shape> {
        let index = self.gguf.find_tensor(name)?;
        self.gguf.tensor(index).map(|tensor| tensor.shape)
    }

    /// An optional matrix: dimensions `[cols, rows]` in the file.
    pub fn find_matrix(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Option<Matrix>, SpecError> {
        let found = self.tensor(name, &[cols, rows])?;
        Ok(found.map(|(tensor, ty)| Matrix { tensor, first_row: 0, rows, cols, ty, bands: None }))
    }

    pub fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix, SpecError> {
        let found = self.find_matrix(name, rows, cols)?;
        found.ok_or_else(|| missing(name, &[cols, rows]))
    }

    /// The matrices of `count` experts, `[rows, cols]` each, in one tensor of dimensions
    /// `[cols, rows, count]`: a matrix of `count * rows` rows.
    pub fn stacked(
        &self,
        name: &str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Matrix, SpecError> {
        let dims = [cols, rows, count];
        let (tensor, ty) = self.tensor(name, &dims)?.ok_or_else(|| missing(name, &dims))?;
        let rows = rows.saturating_mul(count);
        Ok(Matrix { tensor, first_row: 0, rows, cols, ty, bands: None })
    }

    /// A matrix whose products are not rounded.
    pub fn unquantized(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix, SpecError> {
        let matrix = self.matrix(name, rows, cols)?;
        if matrix.ty.is_quantized() {
            return Err(SpecError::Quantized { tensor: name.to_owned(), found: matrix.ty });
        }
        Ok(matrix)
    }

    /// An optional vector of `dims` numbers in total.
    pub fn find_vector(&self, name: &str, dims: &[usize]) -> Result<Option<Vector>, SpecError> {
        let Some((tensor, ty)) = self.tensor(name, dims)? else {
            return Ok(None);
        };
        if ty.is_quantized() {
            return Err(SpecError::Quantized { tensor: name.to_owned(), found: ty });
        }
        Ok(Some(Vector { tensor, first: 0, len: dims.iter().product(), ty, scale: 1.0 }))
    }

    pub fn vector(&self, name: &str, dims: &[usize]) -> Result<Vector, SpecError> {
        self.find_vector(name, dims)?.ok_or_else(|| missing(name, dims))
    }

    pub fn norm(&self, name: &str, width: usize, eps: f32) -> Result<RmsNorm, SpecError> {
        Ok(RmsNorm { weight: self.vector(&format!("{name}.weight"), &[width])?, eps })
    }

    /// `name.weight`, with `name.bias` if it exists.
    pub fn linear(&self, name: &str, rows: usize, cols: usize) -> Result<Linear, SpecError> {
        let matrix = self.matrix(&format!("{name}.weight"), rows, cols)?;
        Ok(Linear { matrix, bias: self.find_vector(&format!("{name}.bias"), &[rows])? })
    }

    /// The projections of a layer to queries, keys and values, which may be one tensor.
    pub fn projections(
        &self,
        layer: usize,
        width: usize,
        [query, key]: [usize; 2],
    ) -> Result<[Linear; 3], SpecError> {
        let name = |suffix: &str| format!("blk.{layer}.{suffix}");
        if self.shape(&name("attn_qkv.weight")).is_none() {
            let linear = |suffix, rows| self.linear(&name(suffix), rows, width);
            return Ok([linear("attn_q", query)?, linear("attn_k", key)?, linear("attn_v", key)?]);
        }
        let values = query.saturating_add(key);
        let fused = self.linear(&name("attn_qkv"), values.saturating_add(key), width)?;
        Ok([fused.part(0, query), fused.part(query, key), fused.part(values, key)])
    }

    /// Marks all tensors whose names begin with `prefix`, as [`skip`](Self::skip) does.
    pub fn skip_all(&self, prefix: &str) {
        let mut used = self.used.borrow_mut();
        let named = self.gguf.tensors().zip(used.iter_mut());
        named.filter(|(tensor, _)| tensor.name.starts_with(prefix)).for_each(|(_, used)| {
            *used = true;
        });
    }

    /// Marks a tensor that the architecture defines but this configuration does not read. It is not
    /// checked either.
    pub fn skip(&self, name: &str) {
        if let Some(index) = self.gguf.find_tensor(name)
            && let Some(used) = self.used.borrow_mut().get_mut(index)
        {
            *used = true;
        }
    }

    /// A tensor of exactly these dimensions (outer dimensions of 1 are ignored), marked as used.
    fn tensor(
        &self,
        name: &str,
        dims: &[usize],
    ) -> Result<Option<(usize, walla_types::TensorType)>, SpecError> {
        let Some(index) = self.gguf.find_tensor(name) else {
            return Ok(None);
        };
        let Some(info) = self.gguf.tensor(index) else {
            return Ok(None);
        };
        let mut padded = [1; 4];
        padded.iter_mut().zip(dims).for_each(|(to, &from)| *to = from as u64);
        if info.shape.padded() != padded {
            let (tensor, expected) = (name.to_owned(), widened(dims));
            return Err(SpecError::Shape { tensor, found: info.shape, expected });
        }
        let wrong_type = |source| SpecError::Type { tensor: name.to_owned(), source };
        let ty = info.ty.map_err(wrong_type)?;
        if let Some(used) = self.used.borrow_mut().get_mut(index) {
            *used = true;
        }
        Ok(Some((index, ty)))
    }

    /// Checks that every tensor was requested.
    pub fn check_all_used(&self) -> Result<(), SpecError> {
        let used = self.used.borrow();
        match self.gguf.tensors().zip(used.iter()).find(|(_, used)| !**used) {
            Some((tensor, _)) => {
                let (tensor, architecture) = (tensor.name.to_owned(), self.architecture);
                Err(SpecError::Unused { tensor, architecture })
            }
            None => Ok(()),
        }
    }
}

fn missing(name: &str, dims: &[usize]) -> SpecError {
    SpecError::Missing { tensor: name.to_owned(), expected: widened(dims) }
}

fn widened(dims: &[usize]) -> Vec<u64> {
    dims.iter().map(|&dim| dim as u64).collect()
}

fn in_words(range: &RangeInclusive<usize>) -> String {
    format!("{}..={}", range.start(), range.end())
}

impl Linear {
    /// The rows `first..first + rows` of a fused projection. The caller ensures that they exist.
    pub(super) fn part(&self, first: usize, rows: usize) -> Self {
        let bias =
            self.bias.map(|b| Vector { first: b.first.saturating_add(first), len: rows, ..b });
        let first_row = self.matrix.first_row.saturating_add(first);
        Self { matrix: Matrix { first_row, rows, ..self.matrix }, bias }
    }

    /// Every second band of `rows` rows of a projection without bias, from band `first` on: 0 or 1.
    /// The caller ensures that the rows are a multiple of `2 * rows`.
    pub(super) fn half(&self, first: usize, rows: usize) -> Self {
        let stride = rows.saturating_mul(2);
        let matrix = Matrix {
            first_row: first.saturating_mul(rows),
            rows: self.matrix.rows / 2,
            bands: Some(Bands { rows, stride }),
            ..self.matrix
        };
        Self { matrix, bias: None }
    }
}
