//! `walla talk`: a conversation by voice, in real time.
//!
//! ```text
//! file or standard input ▶ thread: blocks at the pace of the clock ▶ ear ▶ texts ▶ agent ▶ mouth
//! file or standard output ◀ thread: blocks at the pace of the clock ◀ samples ◀──────────┘
//! ```
//!
//! The output has the length of the conversation: it is the track of the loudspeaker.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use walla::voice::{
    EarEvent, EarOptions, Earshot, Hearing, Microphone, MouthOptions, MouthReader,
    RecognizeOptions, SpeakOptions, SpokenEvent, VoiceEngine, VoiceOptions, Whisper,
    WhisperOptions,
};
use walla::{Agent, AgentSpec};

use super::args::Talk;
use super::wav::{Sound, Writer};
use crate::note::note;
use crate::output::{Output, Target};
use crate::{Failure, chat, load, one_line};

/// Time of a block of samples.
const BLOCK: Duration = Duration::from_millis(20);
/// Time that standard input may be ahead of the clock.
const AHEAD: Duration = Duration::from_millis(100);

pub fn run(arguments: &Talk) -> Result<(), Failure> {
    load::block_on(talk(arguments))
}

async fn talk(arguments: &Talk) -> Result<(), Failure> {
    let Talk { input, voice, hear, out, model, persona, tokens, engine, .. } = arguments;
    let source = match (input.to_str(), arguments.rate) {
        (Some("-"), rate) => Source::Raw(rate.unwrap_or(16_000)),
        (_, Some(_)) => return Err("--rate is for standard input: a WAV file has its own".into()),
        _ => Source::File(Box::new(Sound::open(input)?)),
    };
    let speak = SpeakOptions { speed: arguments.speed, ..SpeakOptions::default() };
    speak.check()?;
    let target = match out.to_str() {
        Some("-") => None,
        _ => Some(Target::new(out, &[&voice.network, input])?),
    };
    if let Some(model) = model {
        chat::check_template(model, None)?;
    }
    let voice = super::load(voice)?;
    let whisper = Whisper::load(hear, WhisperOptions::default())?;
    super::check_language(arguments.language.as_deref(), &whisper)?;
    let engine = load::engine(model.as_deref(), engine, (1, 4_096), None, None).await?;
    // There is no game that needs the processor more.
    let voices = VoiceEngine::new(&VoiceOptions { low_priority: false, ..Default::default() })?;
    let rate = voice.sample_rate();
    let mut mouth = voices.mouth(voice, MouthOptions::default())?;
    let reader = mouth.take_reader().ok_or("the mouth has no reader")?;
    let options = EarOptions {
        recognize: RecognizeOptions { language: arguments.language.clone() },
        ..EarOptions::default()
    };
    let (ear, microphone) = voices.ear(whisper, Box::new(Earshot::default()), options)?;
    let output = target.as_ref().map(Target::create).transpose()?;
    let played = Arc::<Played>::default();
    let player = play(reader, output, rate, Arc::clone(&played))?;
    let recorder = record(source, microphone)?;
    let spec = AgentSpec { max_reply_tokens: *tokens, ..AgentSpec::new(persona.clone()) };
    let agent = engine.agent_with(spec);
    let conversation = Conversation {
        agent,
        hearing: Hearing::new(ear),
        said: VecDeque::new(),
        begin: Instant::now(),
        played: Arc::clone(&played),
        has_times: arguments.times,
        is_raw: target.is_none(),
        speak,
        missing: 0,
    };
    let asked_to_end = load::asked_to_end()?;
    let conversation = async {
        tokio::select! {
            result = conversation.go_on(mouth) => result.map(|()| Ended::Input),
            () = played.ended.notified() => Ok(Ended::Output),
            asked = asked_to_end => Ok(asked.map(|()| Ended::Asked)?),
        }
    };
    let ended = load::until_done(&engine, conversation).await;
    played.stops.store(true, Ordering::Relaxed);
    let output = player.join().map_err(|_| "the thread of the output panicked")?;
    match &ended {
        // A file may be long.
        Ok(Ended::Input) => recorder.join().map_err(|_| "the thread of the input panicked")??,
        Ok(Ended::Output | Ended::Asked) => {}
        // The reader of the texts has ended. The sound is kept.
        Err(error) if crate::is_broken_pipe(&**error) => {}
        Err(_) => return ended.map(drop),
    }
    if let (Some(output), Some(target)) = (output?, target) {
        output.finish().map_err(|error| target.failed(&error))?;
    }
    ended.map(drop)
}

/// Why a conversation has ended.
enum Ended {
    /// The player's voice has ended.
    Input,
    /// The output has failed.
    Output,
    /// The user ends the program.
    Asked,
}

/// State of the output, for latencies and its end.
#[derive(Debug, Default)]
struct Played {
    /// The thread of the output has ended.
    ended: Notify,
    stops: AtomicBool,
    /// When the first sound of an answer was played.
    first: Mutex<Option<Instant>>,
}

struct Conversation {
    agent: Agent,
    hearing: Hearing,
    /// Texts that were heard while the agent spoke, with the ends of their words.
    said: VecDeque<(String, Duration)>,
    /// Time of the microphone's first sample.
    begin: Instant,
    played: Arc<Played>,
    has_times: bool,
    /// Standard output has the sound.
    is_raw: bool,
    speak: SpeakOptions,
    /// Samples that were not made in time so far.
    missing: u64,
}

impl Conversation {
    /// Answers until the sound ends.
    async fn go_on(mut self, mut mouth: walla::voice::Mouth) -> Result<(), Failure> {
        loop {
            let (text, end) = match self.said.pop_front() {
                Some(said) => said,
                None => match self.hearing.next().await {
                    None => return Ok(()),
                    Some(event) => {
                        self.hear(event)?;
                        continue;
                    }
                },
            };
            self.write(&format!("> {}", one_line(&text)))?;
            mouth = self.answer(text, end, mouth).await?;
        }
    }

    /// An event while the agent is silent. Returns whether it has words.
    fn hear(&mut self, event: EarEvent) -> Result<bool, Failure> {
        match event {
            EarEvent::Partial { .. } => return Ok(true),
            EarEvent::Final { transcript, end, silence, .. } => {
                self.said.push_back((transcript.text, end.saturating_sub(silence)));
                return Ok(true);
            }
            EarEvent::Failed(error) => return Err(error.into()),
            EarEvent::Lost { samples } => note!("walla: {samples} samples were not heard"),
            _ => {}
        }
        Ok(false)
    }

    async fn answer(
        &mut self,
        text: String,
        end: Duration,
        mouth: walla::voice::Mouth,
    ) -> Result<walla::voice::Mouth, Failure> {
        *self.first() = None;
        let mut spoken = self.agent.ask(text).speak(mouth, self.speak.clone());
        let (mut is_made, mut has_ended) = (false, false);
        while !is_made || !spoken.is_idle() {
            tokio::select! {
                event = spoken.next(), if !is_made => match event {
                    None => is_made = true,
                    Some(Ok(SpokenEvent::Sentence { text, .. })) => {
                        self.write(&one_line(&text))?;
                    }
                    Some(Ok(SpokenEvent::Failed { error, .. })) => note!("walla: {error}"),
                    Some(Ok(_)) => {}
                    // One reply failed; the conversation continues.
                    Some(Err(error)) => self.write(&format!("[{error}]"))?,
                },
                event = self.hearing.next(), if !has_ended => match event {
                    None => has_ended = true,
                    Some(event) => if self.hear(event)? {
                        spoken.interrupt();
                        self.write("[interrupted]")?;
                        break;
                    }
                },
                () = tokio::time::sleep(BLOCK), if is_made => {}
            }
        }
        let first = *self.first();
        if let Some(first) = first.filter(|_| self.has_times) {
            let millis = first.saturating_duration_since(self.begin + end).as_millis();
            note!("first sound {millis} ms after the words");
        }
        let mouth = spoken.into_mouth().0;
        let missing = mouth.underrun_samples()
            - std::mem::replace(&mut self.missing, mouth.underrun_samples());
        if missing > 0 {
            let missing = walla::voice::duration(missing, mouth.sample_rate()).as_millis();
            note!("walla: {missing} ms of silence within the answer: the processor is too slow");
        }
        Ok(mouth)
    }

    /// Writes a line.
    fn write(&self, line: &str) -> std::io::Result<()> {
        if self.is_raw {
            note!("{line}");
            return Ok(());
        }
        let mut out = std::io::stdout();
        writeln!(out, "{line}")?;
        out.flush()
    }

    fn first(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.played.first.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Where the player's voice comes from.
enum Source {
    File(Box<Sound>),
    /// Standard input: 16-bit samples, mono, little-endian, of this rate.
    Raw(u32),
}

/// Sends the sound to the ear, at the pace of the clock.
fn record(
    source: Source,
    mut microphone: Microphone,
) -> Result<JoinHandle<Result<(), SourceError>>, Failure> {
    let thread = std::thread::Builder::new().name("walla-input".to_owned());
    Ok(thread.spawn(move || match source {
        Source::File(mut sound) => {
            let rate = sound.rate();
            let count = (BLOCK.as_secs_f64() * f64::from(rate)).max(1.0) as usize;
            let (mut samples, mut next) = (Vec::new(), Instant::now());
            loop {
                samples.clear();
                sound.read(count, &mut samples).map_err(|error| SourceError(error.to_string()))?;
                if samples.is_empty() {
                    return Ok(());
                }
                microphone.push(&samples, rate);
                next += BLOCK;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        }
        Source::Raw(rate) => {
            let (mut bytes, mut input) = ([0; 640], std::io::stdin().lock());
            let (mut filled, mut pushed, begin) = (0, 0, Instant::now());
            loop {
                let rest = bytes.get_mut(filled..).unwrap_or_default();
                match input.read(rest).map_err(|error| SourceError(error.to_string()))? {
                    0 => return Ok(()),
                    count => filled += count,
                }
                let (whole, _) = bytes.as_chunks::<2>();
                let sample = |bytes: &[u8; 2]| f32::from(i16::from_le_bytes(*bytes)) / 32_768.0;
                let samples: Vec<f32> = whole.iter().take(filled / 2).map(sample).collect();
                microphone.push(&samples, rate);
                // A file is faster than a microphone.
                pushed += samples.len() as u64;
                let ahead = walla::voice::duration(pushed, rate).saturating_sub(begin.elapsed());
                std::thread::sleep(ahead.saturating_sub(AHEAD));
                // An odd byte is the first half of the next sample.
                bytes[0] = bytes[filled - 1];
                filled %= 2;
            }
        }
    })?)
}

/// The input cannot be read to its end.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct SourceError(String);

/// A thread that plays, and returns the file.
type Player = JoinHandle<Result<Option<Output>, String>>;

/// Starts the thread of the loudspeaker.
fn play(
    reader: MouthReader,
    output: Option<Output>,
    rate: u32,
    played: Arc<Played>,
) -> Result<Player, Failure> {
    let thread = std::thread::Builder::new().name("walla-output".to_owned());
    Ok(thread.spawn(move || {
        let file = output.as_ref().map(|output| &output.file);
        let result = stream(reader, file, rate, &played).map_err(|error| error.to_string());
        played.ended.notify_one();
        result.map(|()| output)
    })?)
}

/// Writes the sound of the mouth at the pace of the clock: silence too.
fn stream(
    mut reader: MouthReader,
    file: Option<&File>,
    rate: u32,
    played: &Played,
) -> Result<(), Failure> {
    let mut writer = match file {
        Some(file) => Writer::new(file, rate)?,
        None => Writer::raw(std::io::stdout(), rate),
    };
    let mut block = vec![0.0_f32; (BLOCK.as_secs_f64() * f64::from(rate)) as usize];
    let mut next = Instant::now();
    while !played.stops.load(Ordering::Relaxed) {
        if reader.read(&mut block) > 0
            && let Ok(mut first) = played.first.lock()
        {
            first.get_or_insert_with(Instant::now);
        }
        writer.write(&block)?;
        next += BLOCK;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(writer.finish()?)
}
