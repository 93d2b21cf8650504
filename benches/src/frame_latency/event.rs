//! A newcomer with a long prompt, while everybody speaks: how much later does anybody's next token come?

use std::error::Error;
use std::fmt;

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::prelude::*;
use serde_json::{Value, json};

use crate::parts;
use crate::talk::{self, Place};
use crate::voices::Voices;

/// Frames after which the newcomer is given up.
const FRAMES_MAX: u64 = 3_000;

/// What a chat template adds to a persona and a question, about.
const TEMPLATE_TOKENS: u32 = 15;

/// The newcomer.
#[derive(Resource, Debug, Default)]
pub struct Newcomer {
    /// The frame in which it asked.
    asked: Option<u64>,
    /// Tokens that had missed their deadline by then.
    late_before: u64,
    prompt_tokens: u32,
    /// As the first prompt of an agent came out, the template's own tokens aside.
    bytes_per_token: Option<f64>,
    /// What came of it.
    pub met: Option<Met>,
}

#[derive(Component)]
struct IsNewcomer;

/// What the prompt did to those who spoke.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Met {
    pub prompt_tokens: u32,
    /// Whether the newcomer said anything before the run ended.
    pub was_answered: bool,
    /// Frames from the ask to the newcomer's first token, or to the end.
    pub frames: u64,
    /// Those who spoke meanwhile.
    pub speaking: usize,
    /// Frames between two tokens of one agent, usually.
    pub gap_usual: u64,
    /// The longest wait for a token, in frames more than usual.
    pub moved_max: u64,
    /// Agents for whom some token came later than usual by more than one frame.
    pub moved_agents: usize,
    /// Tokens that missed their deadline meanwhile.
    pub tokens_late: u64,
}

impl Met {
    /// As [`to_json`](Self::to_json) wrote it.
    pub fn of(value: &Value) -> Result<Self, Box<dyn Error>> {
        let count = |name: &str| parts::count(&value[name]);
        Ok(Self {
            prompt_tokens: count("prompt_tokens")? as u32,
            was_answered: value["answered"] == true,
            frames: count("frames_to_first_token")?,
            speaking: count("agents_speaking")? as usize,
            gap_usual: count("frames_between_tokens_usually")?,
            moved_max: count("tokens_moved_frames_max")?,
            moved_agents: count("agents_moved_more_than_one_frame")? as usize,
            tokens_late: count("deadlines_missed")?,
        })
    }

    pub fn to_json(&self) -> Value {
        let Self { prompt_tokens, was_answered, frames, speaking, gap_usual, .. } = self;
        let Self { moved_max, moved_agents, tokens_late, .. } = self;
        json!({
            "prompt_tokens": prompt_tokens,
            "answered": was_answered,
            "frames_to_first_token": frames,
            "agents_speaking": speaking,
            "frames_between_tokens_usually": gap_usual,
            "tokens_moved_frames_max": moved_max,
            "agents_moved_more_than_one_frame": moved_agents,
            "deadlines_missed": tokens_late,
        })
    }
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prompt_tokens, frames, speaking, gap_usual, moved_max, moved_agents, .. } = self;
        let answered = if self.was_answered { "answered after" } else { "not answered within" };
        write!(
            f,
            "a newcomer with {prompt_tokens} tokens was {answered} {frames} frames; of {speaking} who spoke, a token every {gap_usual} \
             frames, {moved_agents} had one come more than one frame later ({moved_max} at most), and {} missed a deadline",
            self.tokens_late
        )
    }
}

pub fn add_newcomer(app: &mut App) {
    app.init_resource::<Newcomer>()
        .add_observer(started)
        .add_systems(Update, |voices: Res<Voices>, mut newcomer: ResMut<Newcomer>| {
            if newcomer.asked.is_some_and(|asked| voices.frame > asked + FRAMES_MAX) {
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

fn started(
    started: On<ReplyStarted>,
    who: Query<&IsNewcomer>,
    places: Query<&Place>,
    mut newcomer: ResMut<Newcomer>,
) {
    if who.contains(started.agent) {
        newcomer.prompt_tokens = started.prompt_tokens;
    } else if newcomer.bytes_per_token.is_none()
        && let Ok(place) = places.get(started.agent)
    {
        let bytes = talk::persona(place.place).len() + talk::question(place.place).len();
        let tokens = started.prompt_tokens.saturating_sub(TEMPLATE_TOKENS).max(1);
        newcomer.bytes_per_token = Some(bytes as f64 / f64::from(tokens));
    }
}

/// Lets the newcomer arrive, with a prompt of about so many tokens.
pub fn arrive(app: &mut App, tokens: u32) {
    let world = app.world_mut();
    let parts =
        (IsNewcomer, Agent::persona("You are a bard with a long song."), ReplyLimits::tokens(4));
    let agent = world.spawn(parts).id();
    let mut voices = world.resource_mut::<Voices>();
    voices.watch();
    let (frame, late_before) = (voices.frame, voices.measured.tokens_late);
    let mut newcomer = world.resource_mut::<Newcomer>();
    let bytes_per_token = newcomer.bytes_per_token.unwrap_or(4.0);
    (newcomer.asked, newcomer.late_before) = (Some(frame), late_before);
    let bytes = f64::from(tokens) * bytes_per_token;
    world.trigger(Ask { agent, text: song(bytes as usize) });
}

/// The run is over: whoever waits still, has waited that long.
pub fn end(app: &mut App) {
    let world = app.world_mut();
    world.resource_scope(|world, voices: Mut<Voices>| {
        if let Some(mut newcomer) = world.get_resource_mut::<Newcomer>() {
            newcomer.conclude(&voices, false);
        }
    });
}

/// Everything that agents and those who ask them say, over and over: `bytes` of it.
fn song(bytes: usize) -> String {
    let verse: String =
        (0..8).map(|i| [talk::persona(i), " ", talk::question(i), " "].concat()).collect();
    let mut song = verse.repeat(bytes / verse.len() + 1);
    song.truncate(bytes.max(1));
    song
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
            moved_max: moved.iter().copied().max().unwrap_or(0),
            moved_agents: moved.iter().filter(|&&frames| frames > 1).count(),
            tokens_late: voices.measured.tokens_late - self.late_before,
        });
    }
}
