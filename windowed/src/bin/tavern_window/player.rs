//! The player: the guest of the conversation, the questions, and the panel at the lower edge.

use bevy::input::ButtonState;
use bevy::input::keyboard::{Key, KeyboardInput};
use bevy::prelude::*;
use bevy_walla::prelude::*;
use bevy_walla::voice::Voice;

use crate::guest::{Guest, Halo};
use crate::mouth::{BY_PLAYER, LineSpoken, Mouth};
use crate::voices;
use crate::wares;

/// Maximum number of typed characters.
const MAX_TYPED: usize = 90;

/// Height of the panel; guests sit above it.
const PANEL_PX: f32 = 92.0;

const PANEL: Color = Color::srgb(0.085, 0.066, 0.056);
const CHIP: Color = Color::srgb(0.205, 0.160, 0.128);
const CHIP_HOVERED: Color = Color::srgb(0.300, 0.232, 0.180);
const FIELD: Color = Color::srgb(0.045, 0.036, 0.032);
const PALE: Color = Color::srgb(0.930, 0.890, 0.820);
const DIM: Color = Color::srgb(0.640, 0.590, 0.520);
const GOLD: Color = Color::srgb(0.920, 0.690, 0.230);

/// The player's conversation.
#[derive(Resource, Default)]
pub struct Player {
    /// The guest that the player talks with.
    pub guest: Option<Entity>,
    /// Whether the answer is not complete yet.
    pub waits: bool,
    typed: String,
}

/// Selects the guest that the player talks with; `None` ends the conversation.
#[derive(Message, Clone, Copy, Debug)]
pub struct Select(pub Option<Entity>);

/// A line from the player to the selected guest.
#[derive(Message, Clone, Debug)]
pub struct Say(pub String);

/// A text of the panel.
#[derive(Component, Clone, Copy)]
enum Label {
    Who,
    Question(usize),
    Typed,
}

/// A question that can be clicked.
#[derive(Component)]
struct Chip;

/// Visible only while the player talks with a guest.
#[derive(Component)]
struct WhileTalking;

pub fn plugin(app: &mut App) {
    app.init_resource::<Player>()
        .add_message::<Select>()
        .add_message::<Say>()
        .add_systems(Startup, panel)
        .add_systems(Update, (keys, select, say, hear, halo, labels).chain());
}

/// Four questions for a guest.
fn questions(guest: &Guest) -> [String; 4] {
    let common = [
        "What is your name?",
        "Have you heard any news?",
        "Do you need any help?",
        "What are you afraid of?",
    ]
    .into_iter()
    .filter(|question| *question != guest.persona.question)
    .map(str::to_owned);
    let mut others = wares::request(guest.persona.name).into_iter().chain(common);
    let mut next = || others.next().unwrap_or_default();
    [guest.persona.question.to_owned(), next(), next(), next()]
}

fn panel(mut commands: Commands) {
    let root = Node {
        position_type: PositionType::Absolute,
        left: px(0),
        right: px(0),
        bottom: px(0),
        height: px(PANEL_PX),
        padding: UiRect::axes(px(16), px(8)),
        row_gap: px(7),
        flex_direction: FlexDirection::Column,
        ..default()
    };
    commands.spawn((root, BackgroundColor(PANEL), GlobalZIndex(10))).with_children(|panel| {
        let row = Node { column_gap: px(8), align_items: AlignItems::Center, ..default() };
        panel.spawn(row.clone()).with_children(|row| {
            text(row, Label::Who, 16.0, GOLD);
        });
        panel.spawn(row).with_children(|row| {
            for number in 0..4 {
                chip(row, number);
            }
            let field = Node {
                flex_grow: 1.0,
                height: px(30),
                padding: UiRect::horizontal(px(10)),
                align_items: AlignItems::Center,
                border_radius: BorderRadius::all(px(5)),
                display: Display::None,
                ..default()
            };
            row.spawn((WhileTalking, field, BackgroundColor(FIELD))).with_children(|field| {
                text(field, Label::Typed, 15.0, PALE);
            });
        });
    });
}

fn text(parent: &mut ChildSpawnerCommands, label: Label, size: f32, color: Color) {
    let font = TextFont::from_font_size(size);
    let layout = TextLayout::no_wrap();
    parent.spawn((label, Text::default(), layout, font, TextColor(color), Pickable::IGNORE));
}

fn chip(row: &mut ChildSpawnerCommands, number: usize) {
    let node = Node {
        height: px(30),
        padding: UiRect::horizontal(px(10)),
        align_items: AlignItems::Center,
        border_radius: BorderRadius::all(px(5)),
        display: Display::None,
        ..default()
    };
    row.spawn((Chip, WhileTalking, node, BackgroundColor(CHIP)))
        .with_children(|chip| text(chip, Label::Question(number), 14.0, PALE))
        .observe(
            move |_: On<PointerClick>,
                  player: Res<Player>,
                  guests: Query<&Guest>,
                  mut say: MessageWriter<Say>| {
                ask_prepared(number, &player, &guests, &mut say);
            },
        )
        .observe(|over: On<PointerOver>, mut colors: Query<&mut BackgroundColor, With<Chip>>| {
            if let Ok(mut color) = colors.get_mut(over.entity) {
                color.0 = CHIP_HOVERED;
            }
        })
        .observe(|out: On<PointerOut>, mut colors: Query<&mut BackgroundColor, With<Chip>>| {
            if let Ok(mut color) = colors.get_mut(out.entity) {
                color.0 = CHIP;
            }
        });
}

fn ask_prepared(
    number: usize,
    player: &Player,
    guests: &Query<&Guest>,
    say: &mut MessageWriter<Say>,
) {
    let guest = player.guest.and_then(|guest| guests.get(guest).ok());
    if let Some(question) = guest.and_then(|guest| questions(guest).get(number).cloned()) {
        say.write(Say(question));
    }
}

/// Digits select a question until text is typed; then they are typed too.
fn keys(
    mut typing: MessageReader<KeyboardInput>,
    mut player: ResMut<Player>,
    guests: Query<&Guest>,
    mut select: MessageWriter<Select>,
    mut say: MessageWriter<Say>,
) {
    for key in typing.read() {
        if key.state != ButtonState::Pressed || player.guest.is_none() {
            continue;
        }
        match &key.logical_key {
            Key::Escape => {
                select.write(Select(None));
            }
            Key::Backspace => {
                player.typed.pop();
            }
            Key::Enter => {
                let typed = std::mem::take(&mut player.typed);
                if !typed.trim().is_empty() {
                    say.write(Say(typed.trim().to_owned()));
                }
            }
            _ => {
                let Some(text) = key.text.as_deref() else { continue };
                let digit = text.parse::<usize>().ok().filter(|digit| (1..=4).contains(digit));
                if let Some(digit) = digit.filter(|_| player.typed.is_empty()) {
                    ask_prepared(digit - 1, &player, &guests, &mut say);
                    continue;
                }
                let room = MAX_TYPED.saturating_sub(player.typed.chars().count());
                player.typed.extend(text.chars().filter(|letter| !letter.is_control()).take(room));
            }
        }
    }
}

fn select(mut selects: MessageReader<Select>, mut player: ResMut<Player>) {
    if let Some(Select(guest)) = selects.read().last()
        && player.guest != *guest
    {
        *player = Player { guest: *guest, ..default() };
    }
}

/// Interrupts the guest and asks the player's question.
fn say(
    mut says: MessageReader<Say>,
    mut player: ResMut<Player>,
    mut mouths: Query<(&mut Mouth, Has<Voice>)>,
    mut commands: Commands,
) {
    for Say(text) in says.read() {
        let Some(guest) = player.guest else { continue };
        let Ok((mut mouth, has_voice)) = mouths.get_mut(guest) else { continue };
        mouth.stop();
        player.waits = true;
        voices::interrupt(&mut commands, guest, has_voice);
        commands.ask_tagged(guest, text.clone(), BY_PLAYER);
    }
}

fn hear(mut spoken: MessageReader<LineSpoken>, mut player: ResMut<Player>) {
    for line in spoken.read() {
        if line.to_player && player.guest == Some(line.guest) {
            player.waits = false;
        }
    }
}

fn halo(player: Res<Player>, mut halos: Query<(&ChildOf, &mut Visibility), With<Halo>>) {
    if !player.is_changed() {
        return;
    }
    for (of, mut visibility) in &mut halos {
        let selected = player.guest == Some(of.parent());
        visibility.set_if_neq(if selected { Visibility::Inherited } else { Visibility::Hidden });
    }
}

fn labels(
    player: Res<Player>,
    walla: Res<Walla>,
    guests: Query<&Guest>,
    mut labels: Query<(&Label, &mut Text, &mut TextColor)>,
    mut parts: Query<&mut Node, With<WhileTalking>>,
) {
    let guest = player.guest.and_then(|guest| guests.get(guest).ok());
    for (label, mut text, mut color) in &mut labels {
        let (line, ink) = match label {
            Label::Who => (who(guest, walla.state()), GOLD),
            Label::Question(number) => {
                let question = guest.and_then(|guest| questions(guest).get(*number).cloned());
                (
                    question
                        .map(|question| format!("{}  {question}", number + 1))
                        .unwrap_or_default(),
                    PALE,
                )
            }
            Label::Typed if guest.is_none() => (String::new(), DIM),
            Label::Typed if player.typed.is_empty() => ("or type, then Enter".to_owned(), DIM),
            Label::Typed => (format!("{}_", player.typed), PALE),
        };
        if text.0 != line {
            text.0 = line;
        }
        color.set_if_neq(TextColor(ink));
    }
    let display = if guest.is_some() { Display::Flex } else { Display::None };
    for mut node in &mut parts {
        if node.display != display {
            node.display = display;
        }
    }
}

fn who(guest: Option<&Guest>, state: &WallaState) -> String {
    match (state, guest) {
        (WallaState::Loading { fraction }, _) => {
            format!("The guests arrive: {:.0} %", fraction * 100.0)
        }
        (WallaState::Failed(error), _) => format!("Nobody speaks: {error}"),
        (WallaState::Ready, Some(guest)) => {
            format!("You talk with {}.  Escape: leave", guest.persona.name)
        }
        (WallaState::Ready, None) => "Click on somebody to talk.  F3: what it costs".to_owned(),
    }
}
