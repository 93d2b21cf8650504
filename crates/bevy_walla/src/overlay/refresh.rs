//! Counts every frame and refreshes the panel a few times a second.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bevy_color::Color;
use bevy_ecs::prelude::*;
use bevy_ui::prelude::*;
use walla_router::Health;
use walla_runtime::FirstTokenTimes;

use super::WallaOverlay;
use super::meter::{BARS, DeviceUse, FirstTokenSpread, Meters, Spread};
use super::panel::{AMBER, Bar, GREEN, Line, RED, STATES};
use crate::agent::Agent;
use crate::engines::WallaEngines;
use crate::reply::ReplyFinished;
use crate::speech::Speech;
use crate::state::WallaState;
use crate::walla::Walla;

/// Counts a frame and the replies that ended. Its device time counts only if the engine's counters
/// were updated since the last run: with fixed time steps, an update may have none.
pub(super) fn count(
    mut meters: ResMut<Meters>,
    mut ends: MessageReader<ReplyFinished>,
    walla: Option<Res<Walla>>,
) {
    let now = Instant::now();
    if let Some(before) = meters.frame_start.replace(now) {
        meters.frames.add(now.duration_since(before));
    }
    if let Some(walla) = walla.filter(DetectChanges::is_changed) {
        meters.device.add_frame(walla.stats().budget.used);
    }
    for end in ends.read() {
        meters.first_tokens.add(&end.usage);
    }
}

/// Values of the panel at one time.
struct Reading {
    device: DeviceUse,
    /// Device-time budget of a frame; `None`: no limit.
    budget: Option<Duration>,
    /// Agents in each of [`STATES`].
    agents: [u32; STATES.len()],
    tokens_per_second: f64,
    /// `None` before the first reply.
    first_token: Option<FirstTokenSpread>,
    /// Tokens per second; `None` if there were none since the engine's start.
    background: Option<f64>,
    speech: String,
    /// A line for each engine of several.
    engines: String,
    frames: Spread,
    bar_micros: u32,
    bars: [f32; BARS],
}

/// Refreshes the panel if it is visible and due.
pub(super) fn refresh(
    overlay: Res<WallaOverlay>,
    mut meters: ResMut<Meters>,
    (walla, engines): (Option<Res<Walla>>, Option<Res<WallaEngines>>),
    #[cfg(feature = "speech")] voice: Option<Res<crate::voice::VoiceThread>>,
    speeches: Query<&Speech, With<Agent>>,
    mut lines: Query<(&Line, &mut Text, &mut Node)>,
    mut bars: Query<(&Bar, &mut Node, &mut BackgroundColor), Without<Line>>,
    mut scratch: Local<String>,
) {
    let Some(walla) = walla.filter(|_| overlay.visible) else { return };
    let now = Instant::now();
    if meters.refreshed.is_some_and(|then| now.duration_since(then) < overlay.period()) {
        return;
    }
    meters.refreshed = Some(now);
    let background_tokens = walla.stats().background_tokens;
    let background_rate = meters.background_tokens.update(now, background_tokens);
    let bar_micros = meters.frames.bar_micros();
    #[cfg(feature = "speech")]
    let speech = voice.map(|voice| write_speech(voice.stats(), &mut meters, now));
    #[cfg(not(feature = "speech"))]
    let speech = None;
    let reading = Reading {
        device: meters.device.take(walla.stats().device_time),
        budget: walla.stats().budget.budget,
        agents: count_agents(&speeches),
        tokens_per_second: meters.tokens.update(now, walla.stats().tokens),
        first_token: meters.first_tokens.spread(),
        background: (background_tokens > 0).then_some(background_rate),
        speech: speech.unwrap_or_default(),
        engines: engines
            .map(|engines| write_engines(&engines, &mut meters, now))
            .unwrap_or_default(),
        frames: meters.frames.spread(),
        bar_micros,
        bars: meters.frames.bars(bar_micros),
    };
    for (line, mut text, mut node) in &mut lines {
        scratch.clear();
        // Writing to a string does not fail.
        let _ = reading.write(*line, &walla, &mut scratch);
        if text.0 != *scratch {
            text.0.clone_from(&scratch);
            // A line without text takes no space.
            node.display = if scratch.is_empty() { Display::None } else { Display::Flex };
        }
    }
    for (bar, mut node, mut color) in &mut bars {
        reading.draw(*bar, &mut node, &mut color);
    }
}

fn count_agents(speeches: &Query<&Speech, With<Agent>>) -> [u32; STATES.len()] {
    let mut counts = [0; STATES.len()];
    for speech in speeches {
        for (count, (state, ..)) in counts.iter_mut().zip(&STATES) {
            *count += u32::from(speech.state() == *state);
        }
    }
    counts
}

impl Reading {
    fn write(&self, line: Line, walla: &Walla, out: &mut String) -> std::fmt::Result {
        match line {
            Line::Engine => write_engine(walla, out),
            Line::Budget => {
                let [mean, longest] = [self.device.mean, self.device.longest].map(millis);
                write!(out, "{mean:.2}")?;
                if let Some(budget) = self.budget.map(millis) {
                    write!(out, " of {budget:.2}")?;
                }
                write!(out, " ms a frame, longest {longest:.2}")
            }
            Line::Kept => {
                let budget = &walla.stats().budget;
                let kept = budget.frames.saturating_sub(budget.frames_over) as f64;
                let percent = kept / budget.frames.max(1) as f64 * 100.0;
                write!(out, "in budget {percent:.2} % of {} frames", budget.frames)
            }
            Line::Agents => self.write_agents(out),
            Line::Voice => {
                let (stats, times) = (walla.stats(), walla.host_times());
                write!(
                    out,
                    "{:.0} tokens/s   step {:.2} ms   plugin {:.0} µs",
                    self.tokens_per_second,
                    millis(stats.step),
                    times.total().as_secs_f64() * 1e6,
                )
            }
            Line::FirstToken => self.write_first_token(out),
            Line::FirstTokenParts => self.write_first_token_parts(out),
            Line::Background => match self.background {
                Some(rate) => write!(out, "background prefill {rate:.0} tokens/s"),
                None => Ok(()),
            },
            Line::Speech => {
                out.push_str(&self.speech);
                Ok(())
            }
            Line::Engines => {
                out.push_str(&self.engines);
                Ok(())
            }
            Line::Frames => {
                let Spread { p50, p99, max } = self.frames;
                let [p50, p99, max] = [p50, p99, max].map(|micros| f64::from(micros) / 1e3);
                write!(out, "frame {p50:.1} ms   p99 {p99:.1}   max {max:.1}")
            }
            Line::Mark(quarter) => {
                let micros = self.bar_micros * BARS as u32 / 4 * u32::from(quarter);
                let unit = if quarter == 4 { " ms" } else { "" };
                write!(out, "{}{unit}", micros / 1_000)
            }
        }
    }

    /// "5 agents: 2 talking, 3 silent"
    fn write_agents(&self, out: &mut String) -> std::fmt::Result {
        write!(out, "{} agents", self.agents.iter().sum::<u32>())?;
        let present = self.agents.iter().zip(&STATES).filter(|(count, _)| **count > 0);
        for (place, (count, (_, name, _))) in present.enumerate() {
            write!(out, "{} {count} {name}", if place == 0 { ":" } else { "," })?;
        }
        Ok(())
    }

    /// "first token 84 ms   mean 62   max 412"
    fn write_first_token(&self, out: &mut String) -> std::fmt::Result {
        let Some(FirstTokenSpread { latest, mean, max, .. }) = self.first_token else {
            return Ok(());
        };
        let [latest, mean, max] = [latest, mean, max].map(|micros| micros as f64 / 1e3);
        write!(out, "first token {latest:.0} ms   mean {mean:.0}   max {max:.0}")
    }

    /// "wait 312, encode 1, prefill 90, decode 9"
    fn write_first_token_parts(&self, out: &mut String) -> std::fmt::Result {
        let Some(FirstTokenSpread { max_parts, .. }) = self.first_token else { return Ok(()) };
        let FirstTokenTimes { waiting_micros, encoding_micros, prefill_micros, decode_micros } =
            max_parts;
        let parts = [waiting_micros, encoding_micros, prefill_micros, decode_micros];
        let [waiting, encoding, prefill, decode] = parts.map(|micros| micros as f64 / 1e3);
        write!(
            out,
            "wait {waiting:.0}, encode {encoding:.0}, prefill {prefill:.0}, decode {decode:.0}"
        )
    }

    fn draw(&self, bar: Bar, node: &mut Mut<Node>, color: &mut Mut<BackgroundColor>) {
        match bar {
            Bar::Budget => {
                let share = self
                    .budget
                    .map_or(0.0, |budget| millis(self.device.mean) / millis(budget).max(1e-6));
                set(node, |node| &mut node.width, share as f32);
                color.set_if_neq(BackgroundColor(budget_color(share)));
            }
            Bar::Agents(state) => {
                let total = self.agents.iter().sum::<u32>().max(1) as f32;
                let place = STATES.iter().position(|(shown, ..)| *shown == state);
                let count = place.and_then(|place| self.agents.get(place)).copied().unwrap_or(0);
                set(node, |node| &mut node.width, count as f32 / total);
            }
            Bar::Frames(index) => {
                let height = self.bars.get(index).copied().unwrap_or(0.0);
                set(node, |node| &mut node.height, height);
                let longest = (index as u32 + 1) * self.bar_micros;
                color.set_if_neq(BackgroundColor(frame_color(longest)));
            }
        }
    }
}

/// "walla demo on cpu"
fn write_engine(walla: &Walla, out: &mut String) -> std::fmt::Result {
    match walla.model() {
        Some(card) => {
            let name = card.name.as_deref().unwrap_or(card.architecture);
            write!(out, "{name} on {}", card.device.name)?;
        }
        None => write!(out, "walla")?,
    }
    match walla.state() {
        WallaState::Loading { fraction } => write!(out, ", loading {:.0} %", fraction * 100.0),
        WallaState::Ready => Ok(()),
        WallaState::Failed(error) => write!(out, ", failed: {error}"),
    }
}

/// "voice 104 ms/s   longest piece 26 ms", once it has worked.
#[cfg(feature = "speech")]
fn write_speech(stats: crate::voice::VoiceStats, meters: &mut Meters, now: Instant) -> String {
    let busy = u64::try_from(stats.busy.as_micros()).unwrap_or(u64::MAX);
    let rate = meters.voice_micros.update(now, busy) / 1e3;
    if stats.pieces == 0 {
        return String::new();
    }
    format!("voice {rate:.0} ms/s   longest piece {:.0} ms", millis(stats.longest))
}

/// "cloud: 12 replies, 210 tokens/s, 3 moved, unavailable"
fn write_engines(engines: &WallaEngines, meters: &mut Meters, now: Instant) -> String {
    let mut out = String::new();
    for status in engines.list() {
        let rate = meters.engines.entry(Arc::clone(&status.name)).or_default();
        let rate = rate.update(now, status.stats.tokens);
        let lines = if out.is_empty() { "" } else { "\n" };
        // Writing to a string does not fail.
        let _ =
            write!(out, "{lines}{}: {} replies, {rate:.0} tokens/s", status.name, status.replies);
        if status.moved > 0 {
            let _ = write!(out, ", {} moved", status.moved);
        }
        let _ = match (WallaState::from(status.state), status.health) {
            (WallaState::Loading { fraction }, _) => {
                write!(out, ", loading {:.0} %", fraction * 100.0)
            }
            (WallaState::Failed(_), _) => write!(out, ", failed"),
            (WallaState::Ready, Health::Available) => Ok(()),
            (WallaState::Ready, Health::Probing) => write!(out, ", probing"),
            (WallaState::Ready, Health::Unavailable) => write!(out, ", unavailable"),
        };
    }
    out
}

/// Green below 80 % of the budget, amber up to 100 %, red beyond it.
fn budget_color(share: f64) -> Color {
    match share {
        share if share <= 0.8 => GREEN,
        share if share <= 1.0 => AMBER,
        _ => RED,
    }
}

/// Green for a frame within a 60 Hz refresh, amber for one that misses one refresh, red beyond
/// that.
fn frame_color(micros: u32) -> Color {
    match micros {
        0..=17_000 => GREEN,
        17_001..=34_000 => AMBER,
        _ => RED,
    }
}

/// Sets a length to a share of 0 to 1, in whole percents. Marks the node as changed only if the
/// value differs, since a change triggers layout.
fn set(node: &mut Mut<Node>, length: impl Fn(&mut Node) -> &mut Val, share: f32) {
    let value = percent((share.clamp(0.0, 1.0) * 100.0).round());
    let current = length(node.bypass_change_detection());
    if *current != value {
        *current = value;
        node.set_changed();
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use bevy_ecs::message::Messages;

    use super::*;

    #[test]
    fn the_bar_changes_color_before_it_is_full() {
        assert_eq!(budget_color(0.5), GREEN);
        assert_eq!(budget_color(0.9), AMBER);
        assert_eq!(budget_color(1.1), RED);
        assert_eq!(budget_color(f64::NAN), RED);
    }
    #[test]
    fn device_time_is_counted_once_per_update_of_the_counters() {
        let mut world = World::new();
        world.init_resource::<Meters>();
        world.init_resource::<Messages<ReplyFinished>>();
        world.init_resource::<Walla>();
        let count = world.register_system(count);
        world.run_system(count).unwrap();
        world.resource_mut::<Meters>().device.take(Duration::ZERO);
        for has_time_step in [true, false, false, true, false] {
            if has_time_step {
                world.resource_mut::<Walla>().set_changed();
            }
            world.run_system(count).unwrap();
        }
        let used = world.resource_mut::<Meters>().device.take(Duration::from_millis(6));
        assert_eq!(used.mean, Duration::from_millis(3), "two of five updates");
    }
}
