//! Vectors, and their texts as tokens.

use walla_model::embedding::Pooling;

/// The vector of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Of length 1 (the square root of the sum of squares), or all zeros.
    pub vector: Vec<f32>,
    /// Tokens that were read, with the tokens at the ends.
    pub tokens: u32,
    /// Whether the text had more tokens than the model reads.
    pub is_cut: bool,
}

/// The cosine of the angle between two vectors of the same length, from -1 to 1; 0 if one of them
/// is zero.
#[must_use]
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { (dot(a, b) / lengths).clamp(-1.0, 1.0) as f32 } else { 0.0 }
}

/// The vector of a text from the hidden states of its tokens, `[tokens, width]`; `None` if it is
/// not finite. Sums are in f64.
pub(crate) fn pool(states: &[f32], width: usize, pooling: Pooling) -> Option<Vec<f32>> {
    let mut sums = vec![0.0_f64; width];
    let rows = states.chunks_exact(width);
    let picked = match pooling {
        Pooling::Mean => rows,
        Pooling::First => states.get(..width)?.chunks_exact(width),
        Pooling::Last => states.get(states.len().checked_sub(width)?..)?.chunks_exact(width),
    };
    for row in picked {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    // The number of rows divides out in the normalisation.
    let length = sums.iter().map(|x| x * x).sum::<f64>().sqrt();
    if !length.is_finite() {
        return None;
    }
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    Some(sums.into_iter().map(|x| (x * scale) as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooled_vectors_have_length_one() {
        let states = [3.0, 0.0, 0.0, 4.0, 1.0, 0.0];
        assert_eq!(pool(&states, 2, Pooling::First), Some(vec![1.0, 0.0]));
        assert_eq!(pool(&states, 2, Pooling::Last), Some(vec![1.0, 0.0]));
        let mean = pool(&states, 2, Pooling::Mean).unwrap();
        assert!((mean[0] - 0.5_f32.sqrt()).abs() < 1e-7 && mean[0] == mean[1], "{mean:?}");
        assert_eq!(pool(&[0.0; 4], 2, Pooling::Mean), Some(vec![0.0, 0.0]));
        assert_eq!(pool(&[f32::NAN, 0.0], 2, Pooling::Mean), None);
        assert_eq!(pool(&[f32::INFINITY, 0.0], 2, Pooling::First), None);
    }

    #[test]
    fn cosines_of_known_angles() {
        assert_eq!(cosine(&[1.0, 0.0], &[2.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 5.0]), 0.0);
        assert_eq!(cosine(&[1.0, 1.0], &[-1.0, -1.0]), -1.0);
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 0.0]), 0.0);
    }
}
