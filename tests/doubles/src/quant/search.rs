//! Scales with the smallest error: a search over integer grids, each refined by least squares.

/// Weight of a number's error. Large numbers weigh more, because the activations that they are
/// multiplied with are unknown.
fn weight(x: f32, mean_square: f32) -> f32 {
    mean_square.sqrt() + x.abs()
}

fn mean_square(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32
}

/// `scale` for `x ≈ scale * q`, `q` in `-half..half`.
///
/// The grid is scaled so that the largest magnitude is mapped to steps around `-half`, the longer
/// side. For a given `q`, the best scale is `sum(w x q) / sum(w q^2)`, with an error of `sum(w x^2)
/// - sum(w x q)^2 / sum(w q^2)`. So the grid with the largest subtrahend is best.
pub(super) fn symmetric(x: &[f32], half: f32) -> f32 {
    let extreme = x.iter().copied().fold(0.0, |a: f32, b| if b.abs() > a.abs() { b } else { a });
    if extreme.abs() < f32::MIN_POSITIVE {
        return 0.0;
    }
    let (mut best, mut best_gain) = (-extreme / half, 0.0);
    for step in -9_i8..=9 {
        let inverse = -(half + 0.1 * f32::from(step)) / extreme;
        let (mut xq, mut qq) = (0.0, 0.0);
        for &x in x {
            let q = (x * inverse).round_ties_even().clamp(-half, half - 1.0);
            xq += x * x * x * q;
            qq += x * x * q * q;
        }
        if qq > 0.0 && xq * xq > best_gain * qq {
            best = xq / qq;
            best_gain = xq * xq / qq;
        }
    }
    best
}

/// `scale` for `x ≈ scale * table[index]`, for a table whose first number is the extreme.
///
/// As [`symmetric`], with the grid of the table.
pub(super) fn indexed(x: &[f32], table: &[i8; 16]) -> f32 {
    let extreme = x.iter().copied().fold(0.0, |a: f32, b| if b.abs() > a.abs() { b } else { a });
    if extreme.abs() < f32::MIN_POSITIVE {
        return 0.0;
    }
    let first = f32::from(table[0]);
    let (mut best, mut best_gain) = (extreme / first, 0.0);
    for step in -9_i8..=9 {
        // Steps of 1 % of the range.
        let inverse = first * (1.0 + 0.01 * f32::from(step)) / extreme;
        let (mut xq, mut qq) = (0.0, 0.0);
        for &x in x {
            let q = f32::from(table[usize::from(nearest(table, x * inverse))]);
            xq += x * x * x * q;
            qq += x * x * q * q;
        }
        if qq > 0.0 && xq * xq > best_gain * qq {
            best = xq / qq;
            best_gain = xq * xq / qq;
        }
    }
    best
}

/// Index of the number of the table that is nearest to `x`; the first of two that are equally near.
pub(super) fn nearest(table: &[i8; 16], x: f32) -> u8 {
    let mut best = (0, f32::INFINITY);
    for (index, number) in (0_u8..).zip(table) {
        let distance = (x - f32::from(*number)).abs();
        if distance < best.1 {
            best = (index, distance);
        }
    }
    best.0
}

/// `(scale, minimum)`, both at least 0, for `x ≈ scale * q - minimum`, `q` in `0..=steps`.
///
/// For a given `q`, scale and minimum solve two linear equations; a negative minimum is set to 0.
pub(super) fn with_minimum(x: &[f32], steps: f32, spread: f32) -> (f32, f32) {
    let low = x.iter().copied().fold(0.0, f32::min);
    let high = x.iter().copied().fold(low, f32::max);
    if high - low < f32::MIN_POSITIVE {
        return (0.0, -low);
    }
    let mean_square = mean_square(x);
    let error = |scale: f32, minimum: f32| {
        let inverse = 1.0 / scale;
        let one = |&x: &f32| {
            let q = ((x + minimum) * inverse).round_ties_even().clamp(0.0, steps);
            let off = scale * q - minimum - x;
            weight(x, mean_square) * off * off
        };
        x.iter().map(one).sum::<f32>()
    };
    let mut best = ((high - low) / steps, -low);
    let mut best_error = error(best.0, best.1);
    for step in 0_u8..=20 {
        // From a grid that clips the ends to one that is wider than the numbers.
        let inverse = (steps - spread + 0.1 * f32::from(step)) / (high - low);
        let Some((scale, minimum)) = refine(x, inverse, low, steps, mean_square) else { continue };
        let found = error(scale, minimum);
        if found < best_error {
            (best, best_error) = ((scale, minimum), found);
        }
    }
    best
}

/// The best scale and minimum for the integers of a grid.
fn refine(x: &[f32], inverse: f32, low: f32, steps: f32, mean_square: f32) -> Option<(f32, f32)> {
    let [mut w1, mut wq, mut wqq, mut wx, mut wqx] = [0.0_f32; 5];
    for &x in x {
        let q = ((x - low) * inverse).round_ties_even().clamp(0.0, steps);
        let w = weight(x, mean_square);
        w1 += w;
        wq += w * q;
        wqq += w * q * q;
        wx += w * x;
        wqx += w * q * x;
    }
    let determinant = w1 * wqq - wq * wq;
    if determinant.is_nan() || determinant <= 0.0 {
        return None;
    }
    let scale = (w1 * wqx - wq * wx) / determinant;
    let minimum = (wq * wqx - wqq * wx) / determinant;
    let (scale, minimum) = if minimum < 0.0 { (wqx / wqq, 0.0) } else { (scale, minimum) };
    (scale > 0.0).then_some((scale, minimum))
}
