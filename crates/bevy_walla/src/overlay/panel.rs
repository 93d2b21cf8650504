//! The panel: nodes that are spawned once and changed later.

use bevy_color::Color;
use bevy_ecs::prelude::*;
use bevy_text::{TextColor, TextFont, TextLayout};
use bevy_ui::prelude::*;

use super::meter::BARS;
use super::{OverlayCorner, WallaOverlay};
use crate::speech::SpeechState;

/// The panel's root.
#[derive(Component)]
pub(super) struct Panel;

/// A line of text.
#[derive(Component, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// Model, device and state.
    Engine,
    /// Device time against the budget.
    Budget,
    /// Share of frames within the budget.
    Kept,
    /// Agents by state.
    Agents,
    /// Tokens per second, and the latest step.
    Voice,
    /// Times to the first token.
    FirstToken,
    /// Parts of the longest of them.
    FirstTokenParts,
    /// Tokens evaluated in the background.
    Background,
    /// Computing time of speech.
    Speech,
    /// Each engine of several, one per line.
    Engines,
    /// Frame times.
    Frames,
    /// An axis label below the histogram, at this many quarters of its width.
    Mark(u8),
}

/// A bar whose width or height shows a value.
#[derive(Component, Clone, Copy, PartialEq)]
pub(super) enum Bar {
    /// Device time of the mean frame; its width is the share of the budget.
    Budget,
    /// The share of agents in this state.
    Agents(SpeechState),
    /// Frames in this bar of the histogram.
    Frames(usize),
}

/// States in the order of display, most active first.
pub(super) const STATES: [(SpeechState, &str, Color); 4] = [
    (SpeechState::Talking, "talking", GREEN),
    (SpeechState::Thinking, "thinking", BLUE),
    (SpeechState::Asked, "asked", AMBER),
    (SpeechState::Silent, "silent", GRAY),
];

pub(super) const GREEN: Color = Color::srgb(0.45, 0.80, 0.47);
pub(super) const AMBER: Color = Color::srgb(0.95, 0.73, 0.33);
pub(super) const RED: Color = Color::srgb(0.93, 0.40, 0.36);
const BLUE: Color = Color::srgb(0.45, 0.68, 0.95);
const GRAY: Color = Color::srgb(0.42, 0.44, 0.48);
const TRACK: Color = Color::srgb(0.135, 0.145, 0.165);
const BACK: Color = Color::srgba(0.06, 0.07, 0.09, 0.88);
const PALE: Color = Color::srgb(0.86, 0.88, 0.91);
const DIM: Color = Color::srgb(0.58, 0.61, 0.66);

const WIDTH_PX: f32 = 300.0;
const MARGIN_PX: f32 = 12.0;
const HISTOGRAM_PX: f32 = 44.0;

/// Above most of the game's UI, below its topmost layers.
const LAYER: i32 = 1_000;

pub(super) fn spawn(mut commands: Commands) {
    commands
        .spawn((
            Panel,
            Name::new("walla overlay"),
            GlobalZIndex(LAYER),
            BackgroundColor(BACK),
            Node {
                position_type: PositionType::Absolute,
                width: px(WIDTH_PX),
                padding: UiRect::all(px(10)),
                row_gap: px(4),
                flex_direction: FlexDirection::Column,
                border_radius: BorderRadius::all(px(6)),
                ..Node::default()
            },
        ))
        .with_children(|panel| {
            line(panel, Line::Engine, DIM);
            line(panel, Line::Budget, PALE);
            track(panel, &[(Bar::Budget, GREEN)]);
            line(panel, Line::Kept, DIM);
            line(panel, Line::Agents, PALE);
            track(panel, &STATES.map(|(state, _, color)| (Bar::Agents(state), color)));
            line(panel, Line::Voice, PALE);
            line(panel, Line::FirstToken, PALE);
            line(panel, Line::FirstTokenParts, DIM);
            line(panel, Line::Background, DIM);
            line(panel, Line::Speech, DIM);
            line(panel, Line::Engines, DIM);
            line(panel, Line::Frames, PALE);
            histogram(panel);
        });
}

fn line(panel: &mut ChildSpawnerCommands, line: Line, color: Color) {
    let font = TextFont::from_font_size(13.0);
    panel.spawn((line, Text::default(), TextLayout::no_wrap(), font, TextColor(color)));
}

/// A track, and bars that fill it from the left.
fn track(panel: &mut ChildSpawnerCommands, bars: &[(Bar, Color)]) {
    let node = Node {
        width: percent(100),
        height: px(7),
        overflow: Overflow::clip(),
        border_radius: BorderRadius::all(px(3)),
        ..Node::default()
    };
    panel.spawn((node, BackgroundColor(TRACK))).with_children(|track| {
        for &(bar, color) in bars {
            let node = Node { width: percent(0), height: percent(100), ..Node::default() };
            track.spawn((bar, node, BackgroundColor(color)));
        }
    });
}

fn histogram(panel: &mut ChildSpawnerCommands) {
    let node = Node {
        width: percent(100),
        height: px(HISTOGRAM_PX),
        column_gap: px(1),
        align_items: AlignItems::End,
        ..Node::default()
    };
    panel.spawn((node, BackgroundColor(TRACK))).with_children(|histogram| {
        for index in 0..BARS {
            let node =
                Node { flex_grow: 1.0, flex_basis: px(0), height: percent(0), ..Node::default() };
            histogram.spawn((Bar::Frames(index), node, BackgroundColor(GREEN)));
        }
    });
    let scale = Node {
        width: percent(100),
        justify_content: JustifyContent::SpaceBetween,
        ..Node::default()
    };
    panel.spawn(scale).with_children(|scale| {
        for quarter in 0..=4 {
            let font = TextFont::from_font_size(10.0);
            scale.spawn((Line::Mark(quarter), Text::default(), font, TextColor(DIM)));
        }
    });
}

/// Shows, hides and moves the panel when the settings have changed.
pub(super) fn place(
    overlay: Res<WallaOverlay>,
    mut panels: Query<&mut Node, With<Panel>>,
    mut placed: Local<bool>,
) {
    if *placed && !overlay.is_changed() {
        return;
    }
    for mut node in &mut panels {
        *placed = true;
        node.display = if overlay.visible { Display::Flex } else { Display::None };
        let (margin, other) = (px(MARGIN_PX), Val::Auto);
        let (is_top, is_left) = match overlay.corner {
            OverlayCorner::TopLeft => (true, true),
            OverlayCorner::TopRight => (true, false),
            OverlayCorner::BottomLeft => (false, true),
            OverlayCorner::BottomRight => (false, false),
        };
        (node.top, node.bottom) = if is_top { (margin, other) } else { (other, margin) };
        (node.left, node.right) = if is_left { (margin, other) } else { (other, margin) };
    }
}
