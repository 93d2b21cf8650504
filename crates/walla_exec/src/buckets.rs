//! Selection of the programs to prepare, and of the program that a step runs.

use walla_device::step::StepLayout;
use walla_device::{Device, GraphId, LaunchMode, Phase, Prepared};
use walla_model::ModelSpec;
use walla_plan::BUCKETS;

use crate::error::ExecError;
use crate::load::Weights;
use crate::options::ExecOptions;
use crate::program::{self, Bucket, Buffers};
use crate::ring::StepShape;

/// Context limit, in tokens, of the short-context program tier for a number of rows; `None` if
/// there is no such tier. With too few rows to fill the device, a device may split attention
/// differently when no context is long. The gain is larger, and the limit higher, for fewer rows.
fn short_context(rows: u32) -> Option<u32> {
    match rows {
        ..=4 => Some(2_048),
        5..=16 => Some(1_024),
        _ => None,
    }
}

/// A bucket that is ready to launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedBucket {
    /// Rows it takes.
    pub rows: u32,
    /// Whether it takes only steps in which each row belongs to a different sequence.
    pub pure_decode: bool,
    /// Longest context of a row, in tokens.
    pub context: u32,
    /// Its handle.
    pub graph: GraphId,
    /// Whether it is one graph launch, and if not, why.
    pub mode: LaunchMode,
}

/// Returns the smallest bucket for a step whose longest context is `context` tokens. Every sequence
/// of a step has at least one row, so equal numbers of rows and sequences mean one row each.
pub(crate) fn choose(
    buckets: &[PreparedBucket],
    shape: &StepShape<'_>,
    context: u32,
) -> Option<GraphId> {
    let one_each = shape.rows == shape.sequences;
    let fits = |b: &&PreparedBucket| {
        b.rows >= shape.rows && b.context >= context && (one_each || !b.pure_decode)
    };
    buckets.iter().find(fits).map(|b| b.graph)
}

/// The buckets to prepare: the sizes of [`BUCKETS`] up to `max_rows`. Sizes that a decode step of
/// all sequences can use get a second bucket for steps with one row per sequence. Small ones of
/// these get a third, for short contexts.
fn sizes(options: &ExecOptions) -> Vec<Bucket> {
    let &ExecOptions { max_rows, max_sequences, context_tokens, target, .. } = options;
    let size = |rows: u32, pure_decode: bool, context: u32| {
        let is_decode = pure_decode || rows <= max_sequences;
        let phase = if is_decode { Phase::Decode } else { Phase::Prefill };
        let outputs = rows.min(options.max_outputs);
        Bucket { rows, outputs, context, phase, pure_decode, target }
    };
    let smaller = BUCKETS.into_iter().filter(|&rows| rows < max_rows);
    let mut sizes = Vec::new();
    let mut previous = 0;
    for rows in smaller.chain([max_rows]) {
        if previous < max_sequences {
            let short = short_context(rows).filter(|short| *short < context_tokens);
            sizes.extend(short.map(|short| size(rows, true, short)));
            sizes.push(size(rows, true, context_tokens));
        }
        sizes.push(size(rows, false, context_tokens));
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
    let sizes = sizes(options);
    let build = |&bucket| program::build(model, weights, bucket, layout, buffers);
    let programs = sizes.iter().map(build).collect::<Result<_, _>>()?;
    let prepared = sizes.iter().zip(device.prepare(programs)?);
    let bucket = |(&Bucket { rows, pure_decode, context, .. }, Prepared { graph, mode })| {
        PreparedBucket { rows, pure_decode, context, graph, mode }
    };
    Ok(prepared.map(bucket).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: u32 = 4_096;

    fn options(max_rows: u32, max_sequences: u32, context_tokens: u32) -> ExecOptions {
        ExecOptions { max_rows, max_sequences, context_tokens, ..ExecOptions::default() }
    }

    /// Rows, whether each row belongs to a different sequence, and the longest context.
    fn all(options: &ExecOptions) -> Vec<(u32, bool, u32)> {
        let of = |size: Bucket| (size.rows, size.pure_decode, size.context);
        sizes(options).into_iter().map(of).collect()
    }

    #[test]
    fn decode_sizes_are_prepared_twice() {
        let sizes = |max_rows, max_sequences| all(&options(max_rows, max_sequences, 64));
        assert_eq!(
            sizes(8, 3),
            [(1, true), (1, false), (2, true), (2, false), (3, true), (3, false)]
                .into_iter()
                .chain([(4, false), (6, false), (8, false)])
                .map(|(rows, one_each)| (rows, one_each, 64))
                .collect::<Vec<_>>()
        );
        // Five sequences decode in the bucket of six.
        assert!(sizes(8, 5).contains(&(6, true, 64)));
        assert!(!sizes(8, 5).contains(&(8, true, 64)));
        assert_eq!(sizes(1, 64), [(1, true, 64), (1, false, 64)]);
    }

    #[test]
    fn buckets_of_few_rows_have_a_short_context_tier() {
        let sizes = all(&options(32, 32, CONTEXT));
        assert_eq!(sizes[..3], [(1, true, 2_048), (1, true, CONTEXT), (1, false, CONTEXT)]);
        assert!(sizes.contains(&(4, true, 2_048)) && sizes.contains(&(6, true, 1_024)));
        assert!(sizes.contains(&(16, true, 1_024)) && !sizes.contains(&(24, true, 1_024)));
        assert!(all(&options(32, 32, 1_024)).iter().all(|size| size.2 == 1_024));
    }

    #[test]
    fn a_step_uses_the_smallest_bucket_that_it_satisfies() {
        let prepared = |(i, size): (usize, Bucket)| PreparedBucket {
            rows: size.rows,
            pure_decode: size.pure_decode,
            context: size.context,
            graph: GraphId(i as u32),
            mode: LaunchMode::Graph,
        };
        let options = options(8, 3, CONTEXT);
        let buckets: Vec<_> = sizes(&options).into_iter().enumerate().map(prepared).collect();
        let chosen = |rows, sequences, context| {
            let shape = StepShape { rows, sequences, ..StepShape::default() };
            let graph = choose(&buckets, &shape, context)?;
            all(&options).get(graph.0 as usize).copied()
        };
        assert_eq!(chosen(1, 1, 2_048), Some((1, true, 2_048)));
        assert_eq!(chosen(1, 1, 2_049), Some((1, true, CONTEXT)));
        assert_eq!(chosen(2, 1, 9), Some((2, false, CONTEXT)), "two rows of one sequence");
        assert_eq!(chosen(3, 3, 3_000), Some((3, true, CONTEXT)));
        assert_eq!(
            chosen(4, 4, 9),
            Some((4, false, CONTEXT)),
            "more sequences than decode together"
        );
        assert_eq!(chosen(5, 2, 9), Some((6, false, CONTEXT)));
        assert_eq!(chosen(9, 3, 9), None);
    }
}
