//! Which programs are prepared, and which of them a step runs.

use walla_device::step::StepLayout;
use walla_device::{Device, GraphId, LaunchMode, Phase};
use walla_model::ModelSpec;
use walla_plan::BUCKETS;

use crate::error::ExecError;
use crate::load::Weights;
use crate::options::ExecOptions;
use crate::program::{self, Bucket, Buffers};
use crate::ring::StepShape;

/// A bucket that is ready to launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedBucket {
    /// Rows it takes.
    pub rows: u32,
    /// Whether it takes only steps whose rows are each of another sequence.
    pub one_row_a_sequence: bool,
    /// Its handle.
    pub graph: GraphId,
    /// Whether it is one graph launch, and why not.
    pub mode: LaunchMode,
}

/// The smallest bucket that a step fits. Every sequence of a step has a row at least, so as many rows as sequences means one each.
pub(crate) fn choose(buckets: &[PreparedBucket], shape: &StepShape<'_>) -> Option<GraphId> {
    let one_each = shape.rows == shape.sequences;
    let fits = |b: &&PreparedBucket| b.rows >= shape.rows && (one_each || !b.one_row_a_sequence);
    buckets.iter().find(fits).map(|b| b.graph)
}

/// The buckets to prepare, as rows and whether each row is of another sequence: the sizes of [`BUCKETS`] up to `rows_max`, and of
/// those that decode steps of all sequences can use, one more for steps with one row a sequence.
fn sizes(rows_max: u32, sequences_max: u32) -> Vec<(u32, bool)> {
    let smaller = BUCKETS.into_iter().filter(|&rows| rows < rows_max);
    let mut sizes = Vec::new();
    let mut previous = 0;
    for rows in smaller.chain([rows_max]) {
        if previous < sequences_max {
            sizes.push((rows, true));
        }
        sizes.push((rows, false));
        previous = rows;
    }
    sizes
}

pub(crate) fn prepare(
    device: &mut dyn Device,
    model: &ModelSpec,
    weights: &Weights,
    options: &ExecOptions,
    layout: StepLayout,
    buffers: Buffers,
) -> Result<Vec<PreparedBucket>, ExecError> {
    let sizes = sizes(options.rows_max, options.sequences_max);
    let mut programs = Vec::with_capacity(sizes.len());
    for &(rows, one_row_a_sequence) in &sizes {
        let is_decode = one_row_a_sequence || rows <= options.sequences_max;
        let bucket = Bucket {
            rows,
            outputs: rows.min(options.outputs_max),
            context: options.context_tokens,
            phase: if is_decode { Phase::Decode } else { Phase::Prefill },
            one_row_a_sequence,
        };
        programs.push(program::build(model, weights, bucket, layout, buffers)?);
    }
    let prepared = device.prepare(programs)?;
    let zip = sizes.into_iter().zip(prepared);
    Ok(zip
        .map(|((rows, one_row_a_sequence), p)| PreparedBucket {
            rows,
            one_row_a_sequence,
            graph: p.graph,
            mode: p.mode,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_sizes_are_prepared_twice() {
        assert_eq!(
            sizes(8, 3),
            [(1, true), (1, false), (2, true), (2, false), (3, true), (3, false)]
                .into_iter()
                .chain([(4, false), (6, false), (8, false)])
                .collect::<Vec<_>>()
        );
        // Five sequences decode in the bucket of six.
        assert!(sizes(8, 5).contains(&(6, true)));
        assert!(!sizes(8, 5).contains(&(8, true)));
        assert_eq!(sizes(1, 64), [(1, true), (1, false)]);
    }

    #[test]
    fn a_step_takes_the_smallest_bucket_whose_promise_it_keeps() {
        let prepared = |(i, (rows, one_row_a_sequence)): (usize, (u32, bool))| PreparedBucket {
            rows,
            one_row_a_sequence,
            graph: GraphId(i as u32),
            mode: LaunchMode::Graph,
        };
        let sizes = sizes(8, 3);
        let buckets: Vec<_> = sizes.iter().copied().enumerate().map(prepared).collect();
        let chosen = |rows, sequences| {
            let shape = StepShape { rows, sequences, ..StepShape::default() };
            choose(&buckets, &shape).map(|graph| sizes[graph.0 as usize])
        };
        assert_eq!(chosen(1, 1), Some((1, true)));
        assert_eq!(chosen(2, 1), Some((2, false)), "two rows of one sequence");
        assert_eq!(chosen(3, 3), Some((3, true)));
        assert_eq!(chosen(4, 4), Some((4, false)), "more sequences than decode together");
        assert_eq!(chosen(5, 2), Some((6, false)));
        assert_eq!(chosen(9, 3), None);
    }
}
