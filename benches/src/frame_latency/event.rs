//! A new agent with a long prompt while all others speak: measures the delay of the others' next
//! tokens.

use std::error::Error;
use std::fmt;

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::options::ModelSource;
use bevy_walla::prelude::*;
use serde_json::{Value, json};
use walla_model::tokenizer::{EncodeOptions, Tokenizer};

use crate::fields;
use crate::talk;
use crate::voices::Voices;

/// Frames after which the wait for the new agent ends.
const MAX_FRAMES: u64 = 3_000;

/// Persona of the new agent.
const PERSONA: &str = "You are a bard with a long song.";

/// Approximate number of tokens that a chat template adds to a persona and a question.
const TEMPLATE_TOKENS: u32 = 15;

/// The new agent.
#[derive(Resource, Debug, Default)]
pub struct Newcomer {
    /// The frame in which it asked.
    asked: Option<u64>,
    /// Tokens that had missed their deadline before the ask.
    late_before: u64,
    prompt_tokens: u32,
    /// Effect of the prompt.
    pub met: Option<Met>,
}

#[derive(Component)]
struct IsNewcomer;

/// Effect of the prompt on the speaking agents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Met {
    pub prompt_tokens: u32,
    /// Whether the new agent's reply began before the run ended.
    pub was_answered: bool,
    /// Frames from the ask to the new agent's first token, or to the end.
    pub frames: u64,
    /// Number of agents that spoke meanwhile.
    pub speaking: usize,
    /// Median number of frames between two tokens of one agent.
    pub gap_usual: u64,
    /// The longest wait for a token, in frames above the median.
    pub max_moved: u64,
    /// Agents with a token that was later than the median by more than one frame.
    pub moved_agents: usize,
    /// Tokens that missed their deadline meanwhile.
    pub tokens_late: u64,
}

impl Met {
    /// Parses the output of [`to_json`](Self::to_json).
    pub fn of(value: &Value) -> Result<Self, Box<dyn Error>> {
        let count = |name: &str| fields::count(&value[name]);
        Ok(Self {
            prompt_tokens: count("prompt_tokens")? as u32,
            was_answered: value["answered"] == true,
            frames: count("frames_to_first_token")?,
            speaking: count("agents_speaking")? as usize,
            gap_usual: count("frames_between_tokens_usually")?,
            max_moved: count("tokens_moved_frames_max")?,
            moved_agents: count("agents_moved_more_than_one_frame")? as usize,
            tokens_late: count("deadlines_missed")?,
        })
    }

    pub fn to_json(&self) -> Value {
        let Self { prompt_tokens, was_answered, frames, speaking, gap_usual, .. } = self;
        let Self { max_moved, moved_agents, tokens_late, .. } = self;
        json!({
            "prompt_tokens": prompt_tokens,
            "answered": was_answered,
            "frames_to_first_token": frames,
            "agents_speaking": speaking,
            "frames_between_tokens_usually": gap_usual,
            "tokens_moved_frames_max": max_moved,
            "agents_moved_more_than_one_frame": moved_agents,
            "deadlines_missed": tokens_late,
        })
    }
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prompt_tokens, frames, speaking, gap_usual, max_moved, moved_agents, .. } = self;
        let answered = if self.was_answered { "answered after" } else { "not answered within" };
        write!(
            f,
            "a newcomer with {prompt_tokens} tokens was {answered} {frames} frames; of {speaking} who spoke, a token every {gap_usual} \
             frames, {moved_agents} had one come more than one frame later ({max_moved} at most), and {} missed a deadline",
            self.tokens_late
        )
    }
}

pub fn add_newcomer(app: &mut App) {
    app.init_resource::<Newcomer>()
        .add_observer(started)
        .add_systems(Update, |voices: Res<Voices>, mut newcomer: ResMut<Newcomer>| {
            if newcomer.asked.is_some_and(|asked| voices.frame > asked + MAX_FRAMES) {
                newcomer.conclude(&voices, false);
            }
        })
        .add_observer(
            |delta: On<ReplyDelta>,
             who: Query<&IsNewcomer>,
             voices: Res<Voices>,
             mut newcomer: ResMut<Newcomer>,
             mut commands: Commands| {
                if who.contains(delta.agent) {
                    newcomer.conclude(&voices, true);
                    commands.entity(delta.agent).despawn();
                }
            },
        )
        .add_observer(|failed: On<ReplyFailed>, who: Query<&IsNewcomer>| {
            if who.contains(failed.agent) {
                eprintln!("  the newcomer says nothing: {}", failed.error);
            }
        });
}

fn started(started: On<ReplyStarted>, who: Query<&IsNewcomer>, mut newcomer: ResMut<Newcomer>) {
    if who.contains(started.agent) {
        newcomer.prompt_tokens = started.prompt_tokens;
    }
}

/// Adds the new agent, which asks about `song`.
pub fn arrive(app: &mut App, song: String) {
    let world = app.world_mut();
    let parts = (IsNewcomer, Agent::persona(PERSONA), ReplyLimits::tokens(4));
    let agent = world.spawn(parts).id();
    let mut voices = world.resource_mut::<Voices>();
    voices.watch();
    let (frame, late_before) = (voices.frame, voices.measured.tokens_late);
    let mut newcomer = world.resource_mut::<Newcomer>();
    (newcomer.asked, newcomer.late_before) = (Some(frame), late_before);
    world.trigger(Ask::new(agent, song));
}

/// Ends the run: a wait that is not over counts with its duration so far.
pub fn end(app: &mut App) {
    let world = app.world_mut();
    world.resource_scope(|world, voices: Mut<Voices>| {
        if let Some(mut newcomer) = world.get_resource_mut::<Newcomer>() {
            newcomer.conclude(&voices, false);
        }
    });
}

/// The agents' personas and questions, repeated to a prompt of `tokens` tokens of the model.
///
/// # Errors
/// An error of the model's file.
pub fn song(model: &ModelSource, tokens: u32) -> Result<String, Box<dyn Error>> {
    let tokenizer = Tokenizer::from_gguf(&model.open()?)?;
    let count = |text: &str| tokenizer.encode(text, EncodeOptions::default()).map(|all| all.len());
    let words: Vec<&str> = (0..8)
        .flat_map(|i| [talk::persona(i), talk::question(i)])
        .flat_map(str::split_whitespace)
        .collect();
    let text = |words_in_all: usize| -> String {
        words.iter().cycle().take(words_in_all).flat_map(|word| [*word, " "]).collect()
    };
    let wanted = (tokens.saturating_sub(TEMPLATE_TOKENS) as usize).saturating_sub(count(PERSONA)?);
    // There are at least about as many tokens as words: searches the maximum number of words within
    // the limit.
    let (mut enough, mut too_many) = (1, wanted + 2);
    while too_many - enough > 1 {
        let middle = enough.midpoint(too_many);
        if count(&text(middle))? <= wanted { enough = middle } else { too_many = middle }
    }
    Ok(text(enough))
}

impl Newcomer {
    fn conclude(&mut self, voices: &Voices, was_answered: bool) {
        let Some(asked) = self.asked.take() else { return };
        let gap_usual = voices.measured.gap_median().max(1);
        let moved: Vec<u64> = voices
            .gaps_watched(asked)
            .into_iter()
            .map(|gap| gap.saturating_sub(gap_usual))
            .collect();
        self.met = Some(Met {
            prompt_tokens: self.prompt_tokens,
            was_answered,
            frames: voices.frame - asked,
            speaking: moved.len(),
            gap_usual,
            max_moved: moved.iter().copied().max().unwrap_or(0),
            moved_agents: moved.iter().filter(|&&frames| frames > 1).count(),
            tokens_late: voices.measured.tokens_late - self.late_before,
        });
    }
}
