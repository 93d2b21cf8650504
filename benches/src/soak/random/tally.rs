use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};
use walla::{FinishReason, ReplyError};

use super::material::MISSING;

/// Broken promises that are kept; more are only counted.
const MAX_BROKEN: usize = 20;

/// Kinds of ends that no operation causes.
const DEFECTS: [&str; 7] = [
    "ConstraintStopped",
    "ConstraintVocabulary",
    "Device",
    "NoTemplate",
    "NotFinite",
    "NotRecorded",
    "Unsupported",
];

/// Counts of a part, and the promises that were broken.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    operations: BTreeMap<String, u64>,
    ends: BTreeMap<String, u64>,
    frames: u64,
    /// The longest frame and its operation.
    longest_frame: (Duration, String),
    pub broken: Vec<String>,
}

impl Tally {
    pub fn operation(&mut self, operation: impl fmt::Debug) {
        *self.operations.entry(kind(&operation)).or_default() += 1;
    }

    /// Counts the end of a reply.
    pub fn reply(&mut self, end: Result<FinishReason, &ReplyError>) {
        match end {
            Ok(reason) => self.end("reply", &reason),
            Err(error) => self.end("reply", error),
        }
        if let Err(ReplyError::EngineGone(reason)) = end {
            let is_expected = reason.contains("stopped") || reason.contains(MISSING);
            self.promise(is_expected, || format!("an engine ended: {reason}"));
        }
    }

    /// Counts the end of a reply or of another request by its [`kind`].
    pub fn end(&mut self, of: &str, end: &impl fmt::Debug) {
        let kind = kind(end);
        let is_defect = DEFECTS.iter().any(|defect| kind.split(' ').next() == Some(defect));
        self.promise(!is_defect, || format!("an end of a {of}: {end:?}"));
        *self.ends.entry(format!("{of}: {kind}")).or_default() += 1;
    }

    pub fn frame(&mut self, elapsed: Duration, operation: impl fmt::Debug) {
        self.frames += 1;
        if elapsed > self.longest_frame.0 {
            self.longest_frame = (elapsed, format!("{operation:?}"));
        }
    }

    pub fn promise(&mut self, holds: bool, broken: impl FnOnce() -> String) {
        if !holds && self.broken.len() < MAX_BROKEN {
            self.broken.push(broken());
        }
    }

    pub fn add(&mut self, other: Self) {
        for (sums, counts) in
            [(&mut self.operations, other.operations), (&mut self.ends, other.ends)]
        {
            counts.into_iter().for_each(|(kind, count)| *sums.entry(kind).or_default() += count);
        }
        self.frames += other.frames;
        self.longest_frame = self.longest_frame.clone().max(other.longest_frame);
        other.broken.into_iter().for_each(|promise| self.promise(false, || promise));
    }

    pub fn json(&self) -> Value {
        json!({
            "operations": self.operations, "ends": self.ends, "frames": self.frames,
            "longest_frame_ms": self.longest_frame.0.as_secs_f64() * 1e3,
            "longest_frame_operation": self.longest_frame.1,
        })
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  operations: {:?}", self.operations)?;
        write!(f, "  ends: {:?}", self.ends)?;
        let (frames, (longest, operation)) = (self.frames, &self.longest_frame);
        if frames > 0 {
            write!(f, "\n  {frames} frames, the longest {longest:.1?} ({operation})")
        } else {
            Ok(())
        }
    }
}

/// Variant of an enum, and the variant inside: `Result Repeated`. Of a result, `Ok` or the error.
fn kind(of: &impl fmt::Debug) -> String {
    let text = format!("{of:?}");
    let words = text.trim_start_matches("Err(").split(|c: char| !c.is_alphanumeric());
    let variants = words.take_while(|word| word.starts_with(char::is_uppercase));
    variants.take(2).collect::<Vec<_>>().join(" ")
}
