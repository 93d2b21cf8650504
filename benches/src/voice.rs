//! Speech in a game: the time from a player's last word to the first sound of the answer, frames
//! with and without speech, and a crowd that speaks for minutes.
//!
//! ```text
//! cargo xtask voice
//! cargo run --release -p walla_benches --features voice --bin voice -- turns
//! cargo run --release -p walla_benches --features voice --bin voice -- crowd --minutes 10
//! ```

use std::collections::HashSet;
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::prelude::*;
use bevy_walla::voice::{
    HEARING_RATE, Heard, HearingDropped, Interrupt, ListenerEar, Microphone, MouthReader, Piper,
    PiperOptions, SpeakOptions, Speaking, SpeechEnd, SpeechEnded, SpeechStarted, SpeechSynthesizer,
    Step, Timing, Viseme, Voice, VoiceListener, VoiceThread, WallaVoicePlugin,
};
use clap::{Parser, Subcommand};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use walla_benches::{machine, output};
use walla_voice::Resampler;

/// Measures speech in a game, with the files that `cargo xtask voice` fetches.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
    /// Folder with a voice and a Whisper model.
    #[arg(long, default_value = "target/voice", global = true)]
    parts: PathBuf,
    /// Threads of the engine.
    #[arg(long, default_value_t = 1, global = true)]
    threads: u32,
    /// The commit, if git is not available.
    #[arg(long, global = true)]
    commit: Option<String>,
    /// Output file for the numbers as JSON.
    #[arg(long, global = true)]
    output: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A player asks by voice.
    Turns {
        /// Number of questions.
        #[arg(long, default_value_t = 100)]
        turns: usize,
    },
    /// Twelve agents speak, four at once.
    Crowd {
        /// Length.
        #[arg(long, default_value_t = 10.0)]
        minutes: f64,
    },
}

const FRAME: Duration = Duration::from_nanos(16_666_667);
/// Computing time of speech per frame: of a conversation, and of four voices at once.
const BUDGET: Duration = Duration::from_millis(8);
const CROWD_BUDGET: Duration = Duration::from_millis(14);
/// Tokens that the model may write in a frame: the first sentence is spoken sooner than with one.
const STEPS: u32 = 4;
/// Sound that the sound card reads at once.
const BLOCK: Duration = Duration::from_millis(10);

const QUESTIONS: [&str; 10] = [
    "What does a horseshoe cost?",
    "Good morning, how are you today?",
    "Where do you come from?",
    "Have you heard any news?",
    "Do you sell swords?",
    "Who is the guard at the gate?",
    "Can you repair my shield?",
    "What is your name?",
    "Is it going to rain tonight?",
    "I would like to buy some nails.",
];

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(path) = &args.output {
        output::check(path, &[&args.parts])?;
    }
    let result = match args.what {
        What::Turns { turns } => measure_turns(&args, turns)?,
        What::Crowd { minutes } => measure_crowd(&args, minutes)?,
    };
    println!("{result:#}");
    if let Some(path) = &args.output {
        let report = json!({"machine": machine::facts(args.commit.as_deref()), "result": result});
        output::replace(path, format!("{report:#}\n"))?;
    }
    Ok(())
}

impl Args {
    fn voice(&self) -> Result<Arc<Piper>, Box<dyn Error>> {
        let path = self.parts.join("en_US-joe-medium.onnx");
        Ok(Piper::load(path, PiperOptions::default())?)
    }

    fn app(&self, agents: u32, voice_budget: Option<Duration>) -> App {
        let options = EngineOptions {
            threads: Some(self.threads),
            max_agents: Some(agents),
            context_tokens: 512,
            ..EngineOptions::demo()
        };
        let mut app = App::new();
        let plugin =
            WallaPlugin::new(options).pacing(walla_runtime::Pacing::PerFrame { steps: STEPS });
        app.add_plugins(plugin).init_resource::<Counts>();
        if let Some(budget) = voice_budget {
            app.add_plugins(WallaVoicePlugin::default().budget(budget));
        }
        app.add_observer(|_: On<ReplyFinished>, mut counts: ResMut<Counts>| counts.replies += 1)
            .add_observer(|failed: On<ReplyFailed>| eprintln!("{}", failed.error));
        app
    }
}

/// Counts of events, and the faults among them.
#[derive(Resource, Default)]
struct Counts {
    replies: u64,
    sentences: u64,
    spoken: u64,
    visemes: u64,
    /// Visemes outside of a sentence, and the agents that are in one.
    visemes_outside: u64,
    inside: HashSet<Entity>,
    heard: Vec<String>,
    dropped: u64,
    /// When the text of this turn was heard, its answer begun, and its first sentence complete.
    heard_at: Option<Instant>,
    begun_at: Option<Instant>,
    sentence_at: Option<Instant>,
}

/// A sound card: a thread that reads all voices in real time.
struct Mixer {
    readers: Arc<Mutex<Vec<MouthReader>>>,
    first: Arc<Mutex<Option<Instant>>>,
    stops: Arc<AtomicBool>,
}

impl Mixer {
    fn new() -> Self {
        let mixer = Self { readers: Arc::default(), first: Arc::default(), stops: Arc::default() };
        let (readers, first) = (Arc::clone(&mixer.readers), Arc::clone(&mixer.first));
        let stops = Arc::clone(&mixer.stops);
        std::thread::spawn(move || {
            let mut next = Instant::now();
            let mut block = Vec::new();
            while !stops.load(Ordering::Relaxed) {
                for reader in readers.lock().unwrap().iter_mut() {
                    let rate = f64::from(reader.sample_rate());
                    block.resize((rate * BLOCK.as_secs_f64()) as usize, 0.0);
                    if reader.read(&mut block) > 0 {
                        first.lock().unwrap().get_or_insert_with(Instant::now);
                    }
                }
                next += BLOCK;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
        mixer
    }

    /// Takes the readers of voices that are loaded.
    fn connect(&self, app: &mut App) {
        let world = app.world_mut();
        let mut voices = world.query::<&mut Speaking>();
        let new: Vec<_> = voices.iter_mut(world).filter_map(|mut its| its.take_reader()).collect();
        if !new.is_empty() {
            self.readers.lock().unwrap().extend(new);
        }
    }
}

impl Drop for Mixer {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
    }
}

/// Runs frames at 60 Hz and measures them.
struct Frames {
    next: Instant,
    update: Histogram<u64>,
}

impl Frames {
    fn new() -> Self {
        let update = Histogram::new(3).expect("three digits are possible");
        Self { next: Instant::now(), update }
    }

    fn run(&mut self, app: &mut App) {
        let begun = Instant::now();
        app.update();
        self.update += begun.elapsed().as_nanos() as u64;
        self.next += FRAME;
        let now = Instant::now();
        self.next = self.next.max(now.checked_sub(4 * FRAME).unwrap_or(now));
        std::thread::sleep(self.next.saturating_duration_since(now));
    }

    fn micros(&self) -> Value {
        let micros = |at: f64| self.update.value_at_quantile(at) as f64 / 1e3;
        json!({"p50": micros(0.5), "p99": micros(0.99), "max": micros(1.0), "frames": self.update.len()})
    }
}

/// The sound of a question at the ear's rate, and the sample at which its last word ends.
fn question(
    voice: &Arc<Piper>,
    text: &str,
    seed: u64,
) -> Result<(Vec<f32>, usize), Box<dyn Error>> {
    let options = SpeakOptions { seed, ..SpeakOptions::default() };
    let mut utterance = Arc::clone(voice).begin(text, &options)?;
    let (mut samples, mut timing) = (Vec::new(), Timing::default());
    loop {
        match utterance.step(&mut samples)? {
            Step::Planned(part) => timing.append(part),
            Step::Working => {}
            Step::Ended => break,
        }
    }
    let rate = voice.sample_rate();
    let mut heard = vec![0.0; HEARING_RATE as usize / 2];
    let end = timing.words.last().map_or(0, |word| word.end);
    let end = heard.len() + (end * u64::from(HEARING_RATE) / u64::from(rate)) as usize;
    Resampler::new(rate, HEARING_RATE).push(&samples, &mut heard);
    Ok((heard, end))
}

fn measure_turns(args: &Args, turns: usize) -> Result<Value, Box<dyn Error>> {
    let alone = dialogue_alone(args, turns.min(40));
    let voice = args.voice()?;
    let mut app = args.app(1, Some(BUDGET));
    app.add_observer(|heard: On<Heard>, mut counts: ResMut<Counts>| {
        counts.heard.push(heard.text.to_string());
        counts.heard_at.get_or_insert_with(Instant::now);
    })
    .add_observer(|_: On<ReplyDelta>, mut counts: ResMut<Counts>| {
        counts.begun_at.get_or_insert_with(Instant::now);
    })
    .add_observer(|_: On<ReplySentence>, mut counts: ResMut<Counts>| {
        counts.sentence_at.get_or_insert_with(Instant::now);
    })
    .add_observer(|_: On<HearingDropped>, mut counts: ResMut<Counts>| counts.dropped += 1);
    let persona = "You are Greta, the smith of Emberfall. A horseshoe costs 3 silver.";
    let agent = Agent::persona(persona);
    let agent = app.world_mut().spawn((agent, Voice::of(Arc::clone(&voice) as _))).id();
    let ear = VoiceListener::new(args.parts.join("tiny.en").to_string_lossy()).asks(agent);
    let listener = app.world_mut().spawn(ear).id();
    let mixer = Mixer::new();
    let mut frames = Frames::new();
    let mut microphone: Option<Microphone> = None;
    while microphone.is_none() || mixer.readers.lock().unwrap().is_empty() {
        frames.run(&mut app);
        mixer.connect(&mut app);
        let mut ear = app.world_mut().get_mut::<ListenerEar>(listener).ok_or("no ear")?;
        microphone = microphone.or_else(|| ear.take_microphone());
    }
    let mut microphone = microphone.ok_or("no microphone")?;
    let mut latencies = Histogram::<u64>::new(3)?;
    let mut stages: [Vec<f64>; 4] = Default::default();
    let mut slowest = (0, String::new());
    let (mut frames, mut unanswered) = (Frames::new(), 0);
    for turn in 0..turns {
        let text = QUESTIONS[turn % QUESTIONS.len()];
        let (sound, end) = question(&voice, text, turn as u64)?;
        let mut counts = app.world_mut().resource_mut::<Counts>();
        (counts.heard_at, counts.begun_at, counts.sentence_at) = (None, None, None);
        *mixer.first.lock().unwrap() = None;
        let begin = Instant::now();
        let rate = f64::from(HEARING_RATE);
        let (mut sent, limit) = (0, sound.len() + 6 * HEARING_RATE as usize);
        let first = loop {
            // The microphone delivers the samples of the time that has passed.
            let recorded = (begin.elapsed().as_secs_f64() * rate) as usize;
            let part: Vec<f32> =
                (sent..recorded).map(|at| sound.get(at).copied().unwrap_or(0.0)).collect();
            microphone.push(&part, HEARING_RATE);
            sent = recorded;
            frames.run(&mut app);
            let first = *mixer.first.lock().unwrap();
            if first.is_some() || sent > limit {
                break first;
            }
        };
        let words = begin + Duration::from_secs_f64(end as f64 / rate);
        match first {
            Some(first) => {
                let counts = app.world().resource::<Counts>();
                let times = [counts.heard_at, counts.begun_at, counts.sentence_at, Some(first)];
                let mut since = words;
                for (stage, time) in stages.iter_mut().zip(times.into_iter().flatten()) {
                    stage.push(time.saturating_duration_since(since).as_secs_f64() * 1e3);
                    since = time;
                }
                let millis = first.saturating_duration_since(words).as_millis() as u64;
                latencies += millis;
                if millis > slowest.0 {
                    slowest = (millis, text.to_owned());
                }
            }
            None => unanswered += 1,
        }
        // The answer is cut off, so that the turns take less time.
        app.world_mut().trigger(Interrupt { agent });
        for _ in 0..20 {
            frames.run(&mut app);
        }
    }
    let counts = app.world().resource::<Counts>();
    let at = |quantile: f64| latencies.value_at_quantile(quantile);
    let stats = app.world().resource::<VoiceThread>().stats();
    Ok(json!({
        "turns": turns, "unanswered": unanswered, "heard": counts.heard.len(), "dropped": counts.dropped,
        "first_sound_ms": {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1.0)},
        "stages_p50_ms": {
            "until_heard": median(&mut stages[0]), "first_token": median(&mut stages[1]),
            "first_sentence": median(&mut stages[2]), "first_sound": median(&mut stages[3]),
        },
        "slowest": slowest.1,
        "update_micros": {"with_speech": frames.micros(), "dialogue_alone": alone},
        "longest_piece_ms": stats.longest.as_secs_f64() * 1e3,
        "memory_mib": memory_mib(),
    }))
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

/// Frames of the same dialogue in writing.
fn dialogue_alone(args: &Args, turns: usize) -> Value {
    let mut app = args.app(1, None);
    let agent = app.world_mut().spawn(Agent::persona("You are Greta, the smith.")).id();
    let mut frames = Frames::new();
    for _ in 0..120 {
        frames.run(&mut app);
    }
    let mut frames = Frames::new();
    for turn in 0..turns {
        app.world_mut().trigger(Ask::new(agent, QUESTIONS[turn % QUESTIONS.len()]));
        for _ in 0..200 {
            frames.run(&mut app);
        }
    }
    frames.micros()
}

fn measure_crowd(args: &Args, minutes: f64) -> Result<Value, Box<dyn Error>> {
    let voice = args.voice()?;
    let mut app = args.app(12, Some(CROWD_BUDGET));
    app.add_observer(|start: On<SpeechStarted>, mut counts: ResMut<Counts>| {
        counts.sentences += 1;
        counts.inside.insert(start.agent);
    })
    .add_observer(|viseme: On<Viseme>, mut counts: ResMut<Counts>| {
        counts.visemes += 1;
        // The mouth is closed behind the sentence.
        let is_end = viseme.duration.is_zero();
        counts.visemes_outside += u64::from(!is_end && !counts.inside.contains(&viseme.agent));
    })
    .add_observer(|end: On<SpeechEnded>, mut counts: ResMut<Counts>| {
        counts.spoken += u64::from(end.reason == SpeechEnd::Spoken);
        counts.inside.remove(&end.agent);
    });
    let agents: Vec<Entity> = (0..12)
        .map(|number| {
            let persona = format!("You are guest {number} of a tavern. You like to talk.");
            let voice = Voice::of(Arc::clone(&voice) as _).with_speed(0.9 + 0.02 * number as f32);
            app.world_mut().spawn((Agent::persona(persona), AgentSeed(number), voice)).id()
        })
        .collect();
    let mixer = Mixer::new();
    let mut frames = Frames::new();
    let (begin, length) = (Instant::now(), Duration::from_secs_f64(minutes * 60.0));
    let mut asked = 0;
    let mut speakers: Vec<Option<Entity>> = vec![None; 4];
    let mut memory = Vec::new();
    while begin.elapsed() < length {
        for (slot, speaker) in speakers.iter_mut().enumerate() {
            let world = app.world_mut();
            let is_busy = speaker.is_some_and(|agent| {
                let silent = world.get::<Speech>(agent).is_none_or(Speech::is_silent);
                let speaks = world.get::<Speaking>(agent).is_some_and(Speaking::is_speaking);
                !silent || speaks
            });
            if !is_busy {
                // Each place has three guests, who speak in turn.
                let agent = agents[slot * 3 + asked % 3];
                world.trigger(Ask::new(agent, QUESTIONS[asked % QUESTIONS.len()]));
                (*speaker, asked) = (Some(agent), asked + 1);
            }
        }
        frames.run(&mut app);
        mixer.connect(&mut app);
        let minute = begin.elapsed().as_secs() / 60;
        if minute as usize == memory.len() {
            memory.push(memory_mib());
        }
    }
    memory.push(memory_mib());
    let world = app.world_mut();
    let mut voices = world.query::<&Speaking>();
    let underruns: u64 = voices.iter(world).map(Speaking::underrun_samples).sum();
    let counts = world.resource::<Counts>();
    let stats = world.resource::<VoiceThread>().stats();
    Ok(json!({
        "minutes": minutes, "agents": 12, "at_once": 4, "replies": counts.replies,
        "sentences": counts.sentences, "spoken": counts.spoken, "underrun_samples": underruns,
        "visemes": counts.visemes, "visemes_outside": counts.visemes_outside,
        "voice_share_of_a_core": stats.busy.as_secs_f64() / begin.elapsed().as_secs_f64(),
        "longest_piece_ms": stats.longest.as_secs_f64() * 1e3,
        "update_micros": frames.micros(), "memory_mib": memory,
    }))
}

/// Resident memory; 0 on systems without `/proc`.
fn memory_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
