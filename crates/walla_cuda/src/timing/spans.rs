//! Computes the time of each run from records of calls and device work. Pure: no clock, no device.

use crate::driver::cupti::Record;

/// Device work of one run: a kernel, a copy or a fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The kernel's name, `copy` or `fill`.
    pub name: String,
    /// Start, relative to the start of its run.
    pub begin_nanos: u64,
    /// End, relative to the start of its run.
    pub end_nanos: u64,
}

/// One run: all device work started by the calls within a time window, ordered by start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The device work.
    pub pieces: Vec<Piece>,
}

impl Run {
    /// Nanoseconds from the first start to the last end.
    #[must_use]
    pub fn span_nanos(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.end_nanos).max().unwrap_or_default()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().map(|piece| piece.name.as_str())
    }
}

/// Joins device work with the calls that started it, by correlation id, and calls with the time
/// windows in which they were made.
///
/// # Errors
/// A message: a window started no device work, or other kernels than the first window (times of
/// runs cannot be compared then).
pub(super) fn runs(records: &[Record], windows: &[(u64, u64)]) -> Result<Vec<Run>, String> {
    let (mut ran, mut calls): (Vec<&Record>, Vec<&Record>) =
        records.iter().partition(|record| record.work.is_some());
    ran.sort_by_key(|record| record.correlation);
    calls.sort_by_key(|call| call.begin_nanos);
    let mut runs: Vec<Run> = Vec::with_capacity(windows.len());
    for (i, (from, to)) in windows.iter().enumerate() {
        let first = calls.partition_point(|call| call.begin_nanos < *from);
        let inside = calls[first..].iter().take_while(|call| call.begin_nanos <= *to);
        let mut started: Vec<&Record> = Vec::new();
        for call in inside {
            let first = ran.partition_point(|record| record.correlation < call.correlation);
            let same = ran[first..].iter().take_while(|r| r.correlation == call.correlation);
            started.extend(same);
        }
        let run = run(started);
        if run.pieces.is_empty() {
            return Err(format!("run {i} started nothing on the device"));
        }
        if let Some(expected) = runs.first()
            && !run.names().eq(expected.names())
        {
            return Err(format!(
                "run {i} is of other kernels than the first one ({} and {})",
                run.pieces.len(),
                expected.pieces.len()
            ));
        }
        runs.push(run);
    }
    Ok(runs)
}

fn run(mut started: Vec<&Record>) -> Run {
    started.sort_by_key(|record| (record.begin_nanos, record.end_nanos));
    let begin = started.first().map_or(0, |record| record.begin_nanos);
    let piece = |record: &Record| Piece {
        name: record.work.clone().unwrap_or_default(),
        begin_nanos: record.begin_nanos - begin,
        end_nanos: record.end_nanos.saturating_sub(begin),
    };
    Run { pieces: started.into_iter().map(piece).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(work: &str, begin_nanos: u64, end_nanos: u64, correlation: u32) -> Record {
        let work = (work != "call").then(|| work.to_owned());
        Record { work, begin_nanos, end_nanos, correlation }
    }

    #[test]
    fn kernels_of_a_graph_belong_to_the_call_that_launched_it() {
        let records = [
            // A flush before each run, outside of the windows.
            record("call", 5, 6, 1),
            record("fill", 100, 200, 1),
            record("call", 10, 12, 2),
            record("b", 260, 300, 2),
            record("a", 210, 250, 2),
            record("call", 25, 26, 3),
            record("fill", 310, 400, 3),
            record("call", 30, 31, 4),
            record("a", 410, 450, 4),
            record("b", 445, 520, 4),
        ];
        let runs = runs(&records, &[(9, 20), (29, 40)]).unwrap();
        assert_eq!(runs.iter().map(Run::span_nanos).collect::<Vec<_>>(), [90, 110]);
        let names: Vec<_> = runs[0].pieces.iter().map(|piece| piece.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!((runs[1].pieces[1].begin_nanos, runs[1].pieces[1].end_nanos), (35, 110));
    }

    #[test]
    fn runs_of_other_kernels_are_refused() {
        let records = [
            record("call", 10, 11, 1),
            record("a", 20, 30, 1),
            record("call", 40, 41, 2),
            record("b", 50, 60, 2),
        ];
        let windows = [(9, 12), (39, 42)];
        assert!(runs(&records, &windows).unwrap_err().contains("other kernels"));
        assert!(runs(&records, &[(0, 5)]).unwrap_err().contains("started nothing"));
    }
}
