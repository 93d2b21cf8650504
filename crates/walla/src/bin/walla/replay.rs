//! `walla replay`: shows a recording, and verifies or plays it.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum as _;
use walla::record::{End, EngineInfo, Recording, Replay as Replayed, Session};
use walla::{EngineClient, EngineOptions, FrameBudget, ModelSource, RuntimeEngine};
use walla_runtime::{Pacing, Prompt, ReplyEvent};

use crate::Failure;
use crate::args::{Kv, Replay};
use crate::load;
use crate::note::note;

/// Steps that each round of the replay grants.
const STEPS: u32 = 8;

pub fn run(arguments: &Replay) -> Result<(), Failure> {
    let file = &arguments.file;
    let recording = Recording::open(file).map_err(|error| load::named(file, &error))?;
    if recording.entries.is_empty() && recording.end == End::CutOff {
        let bytes = std::fs::metadata(file)?.len();
        let what = "no part of the recording is complete";
        let file = file.display();
        return Err(format!("{file}: {what}: the file ends at byte {bytes}, in chunk 0").into());
    }
    let session = Session::new(&recording);
    if arguments.play {
        return play(&recording, &session);
    }
    summarize(file, &recording, &session)?;
    match source(arguments, &recording)? {
        Some((model, engine)) => verify(arguments, &recording, model, engine),
        None => Ok(()),
    }
}

/// The model that the replay uses, and the recorded engine. `None`: only the summary.
fn source<'a>(
    arguments: &Replay,
    recording: &'a Recording,
) -> Result<Option<(ModelSource, &'a EngineInfo)>, Failure> {
    let Some(engine) = recording.engine() else {
        return match &arguments.model {
            Some(_) => Err("the recording names no model, so no engine can repeat it".into()),
            None => Ok(None),
        };
    };
    if let Some(model) = &arguments.model {
        return Ok(Some((ModelSource::Path(model.clone()), engine)));
    }
    #[cfg(feature = "demo")]
    if ModelSource::demo().open()?.keep()?.digest()? == engine.fingerprint {
        return Ok(Some((ModelSource::demo(), engine)));
    }
    note!("walla: not compared: name the model with --model FILE");
    Ok(None)
}

fn verify(
    arguments: &Replay,
    recording: &Recording,
    model: ModelSource,
    recorded: &EngineInfo,
) -> Result<(), Failure> {
    let device = &arguments.device;
    let kv_type = &recorded.kv_type;
    let kv_type = Kv::from_str(kv_type, false)
        .map_err(|_| format!("the recording has an unknown type of the KV cache: {kv_type:?}"))?;
    let options = EngineOptions {
        device: device.device.clone(),
        threads: device.threads,
        gpu_context: device.share.gpu_context(),
        max_agents: Some(arguments.agents),
        context_tokens: recorded.context_tokens,
        kv_type: kv_type.into(),
        kv_tokens: (recorded.kv_tokens < recorded.context_tokens).then_some(recorded.kv_tokens),
        context_shift: recorded.context_shift,
        pre_tokenizer: recorded.pre_tokenizer.clone(),
        template: recorded.template.as_deref().map(Into::into),
        budget: FrameBudget::Unlimited,
        ..EngineOptions::new(model)
    };
    let engine = RuntimeEngine::start(options)?;
    let client = engine.client(Pacing::PerFrame { steps: STEPS })?;
    let bar = load::bar();
    let replay = Replayed::new(recording);
    let report = replay.run_with_progress(&client, |share| bar.set_position((share * 1e3) as u64));
    bar.finish_and_clear();
    let report = report?;
    let device = client.model().map(walla::ModelCard::device_line).unwrap_or_default();
    let what = if report.has_ids { "tokens" } else { "tokens, by their text" };
    let mut out = std::io::stdout();
    writeln!(out, "compared    {} replies, {} {what}, on {device}", report.replies, report.tokens)?;
    if report.left_out > 0 {
        writeln!(out, "left out    {} asks that never began", report.left_out)?;
    }
    let Some(first) = &report.first else {
        writeln!(out, "equal       yes")?;
        return Ok(());
    };
    writeln!(out, "equal       no, {} replies differ", report.different)?;
    let other = if device == recorded.device {
        String::new()
    } else {
        format!(" (recorded on {}, replayed on {device})", recorded.device)
    };
    Err(format!("the first difference: {first}{other}").into())
}

fn summarize(path: &Path, recording: &Recording, session: &Session) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    if let Some(engine) = recording.engine() {
        let name = engine.model.as_deref().unwrap_or("without a name");
        let EngineInfo { version, device, context_tokens, fingerprint, .. } = engine;
        let [name, version, device] = [name, version.as_str(), device.as_str()].map(shown);
        writeln!(out, "model       {name} ({fingerprint:016x})")?;
        writeln!(out, "engine      walla {version} on {device}, context {context_tokens}")?;
    }
    let (seconds, tokens) = (recording.duration().as_secs_f64(), session.tokens());
    writeln!(out, "agents      {}", session.agents.len())?;
    writeln!(out, "replies     {}", session.asks.len())?;
    writeln!(out, "tokens      {tokens}")?;
    writeln!(out, "duration    {seconds:.1} s")?;
    let bytes = std::fs::metadata(path)?.len();
    let per_minute = bytes as f64 / seconds.max(1e-3) * 60.0;
    let per_tokens = bytes as f64 / tokens.max(1) as f64 * 1e3;
    writeln!(
        out,
        "size        {bytes} B; {per_minute:.0} B per minute, {per_tokens:.0} B per 1,000 tokens"
    )?;
    match &recording.end {
        End::Complete => {}
        End::GivenUp(reason) => writeln!(out, "end         early: {}", shown(reason))?,
        End::CutOff => writeln!(out, "end         missing: the program has crashed or still runs")?,
    }
    Ok(())
}

/// Writes the conversations in the order of their ends.
fn play(recording: &Recording, session: &Session) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    let ended = |ask: &walla::record::RecordedAsk| {
        let last = ask.events.last().and_then(|at| recording.entries.get(*at));
        last.map_or(ask.micros, |entry| entry.micros)
    };
    let mut asks: Vec<_> = session.asks.iter().collect();
    asks.sort_by_key(|ask| ended(ask));
    for ask in asks {
        let agent = ask.agent.0;
        let question = match &ask.prompt {
            Prompt::Continue => "(continues)",
            Prompt::Again => "(once more)",
            Prompt::Results(_) => "(results)",
            Prompt::Tokens(_) => "(tokens)",
            text => text.text(),
        };
        writeln!(out, "{:>9} agent {agent} < {}", time(ask.micros), shown(question))?;
        let mut speech = String::new();
        let mut lines = Vec::new();
        for at in &ask.events {
            let Some(entry) = recording.entries.get(*at) else { continue };
            let walla::record::Record::Event(event) = &entry.record else { continue };
            match &event.what {
                ReplyEvent::Delta { text, .. } => speech.push_str(text),
                ReplyEvent::Call(call) => lines.push(format!("[{}]", call.text())),
                ReplyEvent::Failed(error) => lines.push(format!("[{error}]")),
                _ => {}
            }
        }
        if !speech.is_empty() {
            lines.insert(0, speech);
        }
        for line in lines {
            writeln!(out, "{:>9} agent {agent} > {}", time(ended(ask)), shown(line.trim()))?;
        }
    }
    Ok(())
}

/// A text of a recording, which may be from a stranger, without sequences for the terminal.
fn shown(text: &str) -> String {
    text.replace(|letter: char| letter.is_control() && !matches!(letter, '\n' | '\t'), " ")
}

fn time(micros: u64) -> String {
    format!("{:.1} s", Duration::from_micros(micros).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_texts_send_nothing_to_the_terminal() {
        assert_eq!(shown("a\u{1b}]0;x\u{7}\n\tb\u{9b}2J\u{7f}é"), "a ]0;x \n\tb 2J é");
    }
}
