//! `walla speak`.

use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};
use walla_voice::{SpeakOptions, Step, Timed, Timing, duration};

use super::args::Speak;
use super::wav::Writer;
use super::{per_second, processor_time};
use crate::Failure;
use crate::input;
use crate::note::note;
use crate::output::{Output, Target};

/// A text that gives no sound.
#[derive(Debug, thiserror::Error)]
#[error("the text has no word that the voice can speak")]
struct Silent;

/// The two outputs are one file.
#[derive(Debug, thiserror::Error)]
#[error("--visemes and --out name the same file")]
struct SameFile;

pub fn run(arguments: &Speak) -> Result<(), Failure> {
    let Speak { voice: of, out, visemes, speed, seed, speaker, .. } = arguments;
    let options =
        SpeakOptions { speed: *speed, seed: *seed, speaker: *speaker, ..SpeakOptions::default() };
    options.check()?;
    if visemes.as_ref() == Some(out) {
        return Err(SameFile.into());
    }
    let inputs: Vec<&Path> = std::iter::once(&*of.network).chain(of.style.as_deref()).collect();
    // `None`: standard output.
    let target = |path: &Path| match path == Path::new("-") {
        true => Ok(None),
        false => Target::new(path, &inputs).map(Some),
    };
    let (target, times) = (target(out)?, visemes.as_deref().map(target).transpose()?);
    let text = match arguments.text.as_str() {
        "-" => input::standard_input()?,
        text => text.to_owned(),
    };
    let voice = super::load(of)?;
    let rate = voice.sample_rate();
    let output = target.as_ref().map(Target::create).transpose()?;
    let failed = |error: Failure| match &target {
        Some(target) => target.failed(&*error),
        None => error,
    };
    let mut writer = match &output {
        Some(output) if Writer::can_seek(&output.file) => Writer::new(&output.file, rate),
        // A FIFO.
        Some(output) => Writer::stream(&output.file, rate),
        None => Writer::stream(std::io::stdout(), rate),
    }
    .map_err(failed)?;
    let mut timing = Timing::default();
    let begin = processor_time();
    let mut utterance = voice.begin(&text, &options)?;
    let mut samples = Vec::new();
    loop {
        let step = utterance.step(&mut samples)?;
        writer.write(&samples).map_err(failed)?;
        samples.clear();
        match step {
            Step::Planned(part) if times.is_some() => timing.append(part),
            Step::Planned(_) | Step::Working => {}
            Step::Ended => break,
        }
    }
    let length = duration(writer.written(), rate);
    if length.is_zero() {
        return Err(Silent.into());
    }
    writer.finish().map_err(|error| failed(error.into()))?;
    output.map_or(Ok(()), Output::finish).map_err(|error| failed(error.into()))?;
    match times {
        None => {}
        Some(None) => write_times(std::io::stdout().lock(), &text, &timing, rate)?,
        Some(Some(target)) => {
            let output = target.create()?;
            let written = write_times(&output.file, &text, &timing, rate);
            written.and_then(|()| output.finish()).map_err(|error| target.failed(&error))?;
        }
    }
    let (seconds, share) = (length.as_secs_f64(), per_second(begin, length));
    note!("walla: {seconds:.1} s of sound, {share:.3} s of processor time for each");
    Ok(())
}

/// Writes the times as one JSON object, in seconds. A long text has a million of them.
fn write_times(file: impl Write, text: &str, timing: &Timing, rate: u32) -> std::io::Result<()> {
    let mut out = BufWriter::new(file);
    write!(out, "{{\"sample_rate\":{rate},\"samples\":{}", timing.samples.end)?;
    let visemes = timing.visemes.iter().map(|of| entry("viseme", of, of.value.name(), rate));
    write_list(&mut out, "visemes", visemes)?;
    let word = |of: &Timed<_>, range| entry("text", of, text.get(range).unwrap_or_default(), rate);
    let words = timing.words.iter().map(|of| word(of, of.value.clone()));
    write_list(&mut out, "words", words)?;
    let symbol = |of: &Timed<char>| entry("phoneme", of, of.value.encode_utf8(&mut [0; 4]), rate);
    write_list(&mut out, "phonemes", timing.phonemes.iter().map(symbol))?;
    writeln!(out, "}}")?;
    out.flush()
}

fn entry<T>(name: &str, of: &Timed<T>, value: &str, rate: u32) -> Value {
    // To the microsecond: a twentieth of a sample.
    let seconds = |samples| (duration(samples, rate).as_secs_f64() * 1e6).round() / 1e6;
    json!({name: value, "start": seconds(of.start), "end": seconds(of.end)})
}

fn write_list(
    out: &mut impl Write,
    name: &str,
    entries: impl Iterator<Item = Value>,
) -> std::io::Result<()> {
    write!(out, ",\"{name}\":[")?;
    for (index, entry) in entries.enumerate() {
        write!(out, "{}{entry}", if index > 0 { "," } else { "" })?;
    }
    write!(out, "]")
}
