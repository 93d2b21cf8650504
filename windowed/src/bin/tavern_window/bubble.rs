//! Speech bubbles over heads.

use bevy::prelude::*;
use bevy_walla::prelude::*;

use crate::guest::{Guest, HEAD_TOP};
use crate::mouth::Mouth;

/// Less than the distance between two seats at the wall.
const WIDTH_PX: f32 = 174.0;
const TAIL_PX: f32 = 11.0;
const PAPER: Color = Color::srgb(0.972, 0.952, 0.905);
const INK: Color = Color::srgb(0.150, 0.115, 0.090);
const GOLD: Color = Color::srgb(0.920, 0.690, 0.230);

/// Maximum bytes of a bubble: about six lines. The beginning of a longer speech is cut off.
const MAX_BYTES: usize = 140;

/// A bubble and its guest.
#[derive(Component)]
struct Bubble(Entity);

/// The paper of a bubble.
#[derive(Component)]
struct Paper(Entity);

/// The words in a bubble.
#[derive(Component)]
struct Words(Entity);

pub fn plugin(app: &mut App) {
    app.add_systems(PostStartup, spawn)
        .add_systems(PostUpdate, (place, write).before(bevy::ui::UiSystems::Prepare));
}

fn spawn(mut commands: Commands, guests: Query<Entity, With<Guest>>) {
    for guest in &guests {
        let node = Node {
            position_type: PositionType::Absolute,
            width: px(WIDTH_PX),
            flex_direction: FlexDirection::Column,
            align_items: AlignItems::Center,
            display: Display::None,
            ..default()
        };
        commands.spawn((Bubble(guest), node, Pickable::IGNORE)).with_children(|bubble| {
            let paper = Node {
                padding: UiRect::axes(px(9), px(6)),
                border: UiRect::all(px(2)),
                border_radius: BorderRadius::all(px(9)),
                max_width: percent(100),
                ..default()
            };
            let shadow =
                BoxShadow::new(Color::srgba(0.0, 0.0, 0.0, 0.35), px(0), px(2), px(0), px(5));
            bubble
                .spawn((
                    Paper(guest),
                    paper,
                    BackgroundColor(PAPER),
                    BorderColor::all(PAPER),
                    shadow,
                    Pickable::IGNORE,
                ))
                .with_children(|paper| {
                    let font = TextFont::from_font_size(14.5);
                    paper.spawn((
                        Words(guest),
                        Text::default(),
                        font,
                        TextColor(INK),
                        Pickable::IGNORE,
                    ));
                });
            let tail = Node {
                width: px(TAIL_PX),
                height: px(TAIL_PX),
                margin: UiRect::top(px(-TAIL_PX / 2.0 - 1.0)),
                ..default()
            };
            let turned = UiTransform::from_rotation(Rot2::degrees(45.0));
            bubble.spawn((tail, turned, BackgroundColor(PAPER), Pickable::IGNORE));
        });
    }
}

/// Positions each bubble over its head, and hides empty ones.
fn place(
    mut bubbles: Query<(&Bubble, &mut Node)>,
    guests: Query<(&GlobalTransform, &Mouth, &Speech), With<Guest>>,
    camera: Single<(&Camera, &GlobalTransform), With<IsDefaultUiCamera>>,
    window: Single<&Window>,
) {
    let (camera, eye) = *camera;
    for (bubble, mut node) in &mut bubbles {
        let Ok((at, mouth, speech)) = guests.get(bubble.0) else { continue };
        let display = if shown(mouth, speech).is_some() { Display::Flex } else { Display::None };
        let head = at.translation() + Vec3::Y * HEAD_TOP;
        let Ok(head) = camera.world_to_viewport(eye, head) else { continue };
        let room = window.width() - WIDTH_PX;
        let left = px((head.x - WIDTH_PX / 2.0).round().clamp(4.0, (room - 4.0).max(4.0)));
        let bottom = px((window.height() - head.y).round());
        if (node.display, node.left, node.bottom) != (display, left, bottom) {
            (node.display, node.left, node.bottom) = (display, left, bottom);
        }
    }
}

fn write(
    mut words: Query<(&Words, &mut Text)>,
    mut papers: Query<(&Paper, &mut BorderColor)>,
    guests: Query<(&Mouth, &Speech), With<Guest>>,
) {
    for (owner, mut text) in &mut words {
        let Ok((mouth, speech)) = guests.get(owner.0) else { continue };
        let shown = shown(mouth, speech).unwrap_or_default();
        if text.0 != shown {
            shown.clone_into(&mut text.0);
        }
    }
    for (owner, mut border) in &mut papers {
        let Ok((mouth, _)) = guests.get(owner.0) else { continue };
        border.set_if_neq(BorderColor::all(if mouth.is_to_player() { GOLD } else { PAPER }));
    }
}

/// The text of the bubble, if there is one.
fn shown<'a>(mouth: &'a Mouth, speech: &Speech) -> Option<&'a str> {
    let words = mouth.words();
    if !words.is_empty() {
        Some(last_bytes(words, MAX_BYTES))
    } else if speech.is_silent() && mouth.is_quiet() {
        None
    } else {
        Some("…")
    }
}

/// The end of a text, starting at a word.
fn last_bytes(text: &str, max_bytes: usize) -> &str {
    let Some(surplus) = text.len().checked_sub(max_bytes) else { return text };
    let from = (surplus..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    let rest = text.get(from..).unwrap_or_default();
    rest.split_once(' ').map_or(rest, |(_, whole_words)| whole_words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_at_the_beginning() {
        assert_eq!(last_bytes("three silver", 150), "three silver");
        assert_eq!(last_bytes("one two three", 8), "three");
        assert_eq!(last_bytes("ééééé", 3), "é");
    }
}
