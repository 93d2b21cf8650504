//! The guests: agents with a body.

use std::f32::consts::PI;

use bevy::prelude::*;
use bevy::sprite::{SpritePickingMode, SpritePickingSettings};
use bevy_walla::prelude::*;
use bevy_walla::voice::Speaking;
use walla_examples::{Persona, REGULARS};

use crate::brush::Brush;
use crate::mood::{self, Brow, Mood, Plate};
use crate::mouth::Mouth;
use crate::player::Select;
use crate::seats::{SEATS, Seat};
use crate::voices;

/// Spawns the guests.
pub struct GuestPlugin {
    pub guests: usize,
    pub is_demo_model: bool,
}

/// A guest in the tavern. The origin of its transform is at its feet.
#[derive(Component)]
pub struct Guest {
    /// The guest's persona.
    pub persona: Persona,
    /// Index of the guest's seat.
    pub seat: usize,
}

/// Height above the feet that a bubble points to.
pub const HEAD_TOP: f32 = 116.0;

/// Marks the guest that the player talks with; a child of the guest.
#[derive(Component)]
pub struct Halo;

/// Lips; a child of the guest.
#[derive(Component)]
struct Lips;

/// Tokens of a reply: two sentences, which fit in a bubble.
const REPLY_TOKENS: u32 = 48;

/// Shared part of all personas.
const SCENE: &str =
    "You sit in the tavern and talk with the other guests. Answer in one or two sentences.";

impl Plugin for GuestPlugin {
    fn build(&self, app: &mut App) {
        let Self { guests, is_demo_model } = *self;
        // Clicks near a guest count too, not only clicks on opaque pixels.
        app.insert_resource(SpritePickingSettings {
            picking_mode: SpritePickingMode::BoundingBox,
            ..default()
        })
        .add_systems(Startup, move |commands: Commands, brush: Brush| {
            seat(commands, brush, guests, is_demo_model);
        })
        .add_systems(Update, (move_lips, breathe));
    }
}

fn seat(mut commands: Commands, mut brush: Brush, guests: usize, is_demo_model: bool) {
    let cues = mood::cues();
    // The demo model does not understand it.
    let instruction = if is_demo_model { None } else { cues.0.instruction() };
    let instruction = instruction.unwrap_or_default();
    for (number, seat) in SEATS.iter().enumerate().take(guests) {
        let Some(persona) = REGULARS.get(seat.persona).copied() else { continue };
        let in_front = seat.feet.y < -100.0;
        let figure = commands
            .spawn((
                Guest { persona, seat: number },
                Mouth::default(),
                Name::new(persona.name),
                Agent::persona(format!("{} {SCENE} {instruction}", persona.text).trim_end()),
                (cues.clone(), Mood::default()),
                AgentSeed::from_name(persona.name),
                ReplyLimits::tokens(REPLY_TOKENS).stop_at("\n"),
                VoiceRate::tokens_per_second(8.0),
                Transform::from_translation(seat.feet.extend(if in_front { 42.0 } else { 12.0 })),
                Visibility::default(),
            ))
            .observe(|click: On<PointerClick>, mut select: MessageWriter<Select>| {
                select.write(Select(Some(click.entity)));
            })
            .id();
        if is_demo_model {
            commands.entity(figure).insert(mood::habit(persona.text));
        }
        draw(&mut commands, &mut brush, figure, seat, persona.name);
    }
}

/// Appearance of a guest.
#[derive(Clone, Copy)]
struct Look {
    skin: Color,
    hair: Color,
    clothes: Color,
    head: Head,
    beard: bool,
    /// 1 for average height.
    size: f32,
}

#[derive(Clone, Copy, PartialEq)]
enum Head {
    Short,
    Long,
    Bun,
    Bald,
    Hood,
    Helmet,
    Hat,
}

const fn look(skin: u32, hair: u32, clothes: u32, head: Head, beard: bool, size: f32) -> Look {
    Look { skin: rgb(skin), hair: rgb(hair), clothes: rgb(clothes), head, beard, size }
}

const fn rgb(hex: u32) -> Color {
    let [_, red, green, blue] = hex.to_be_bytes();
    Color::srgb(red as f32 / 255.0, green as f32 / 255.0, blue as f32 / 255.0)
}

/// One for each of [`REGULARS`].
const LOOKS: [Look; 12] = [
    look(0xd9a37c, 0xa3422a, 0x7a4a32, Head::Bun, false, 1.0), // Greta
    look(0xe0b08a, 0x6b4a30, 0xb3894a, Head::Short, true, 1.04), // Odo
    look(0xc68f68, 0x2e2622, 0x4f7a55, Head::Long, false, 0.98), // Mirelle
    look(0xe3bd9b, 0x9a9a9a, 0x6d5a48, Head::Bald, true, 0.99), // Anselm
    look(0xb98158, 0x2a221e, 0x4a5d7a, Head::Helmet, true, 1.05), // Voss
    look(0xd8a67f, 0x8a5a2e, 0x8c5a3a, Head::Hood, false, 1.0), // Tamsin
    look(0xe8bf98, 0xc79a52, 0xa85a4a, Head::Short, false, 0.80), // Pip
    look(0xdcb493, 0xd8d5cf, 0x6a5a86, Head::Bun, false, 0.92), // Hesper
    look(0xa8734c, 0x1f1a18, 0x5a5f66, Head::Short, true, 1.02), // Ferro
    look(0xe2b48f, 0x5a3a26, 0x8a3f52, Head::Long, false, 1.0), // Ines
    look(0xd2a078, 0x3a2a22, 0x3f7d7a, Head::Hat, false, 1.02), // Quill
    look(0xcaa080, 0x4a4a52, 0x5d6a4a, Head::Short, false, 1.0), // Wren
];

const HEAD_Y: f32 = 84.0;
const HEAD_RADIUS: f32 = 20.0;

fn draw(
    commands: &mut Commands,
    brush: &mut Brush,
    figure: Entity,
    seat: &Seat,
    name: &'static str,
) {
    let Some(look) = LOOKS.get(seat.persona).copied() else { return };
    let mut parts: Vec<Entity> = Vec::new();
    let mut body = |part: Entity| parts.push(part);

    body(commands.spawn(brush.shape(Ellipse::new(34.0, 7.0), SHADOW, (0.0, -2.0, -0.9))).id());
    let dark = look.clothes.darker(0.07);
    body(
        commands
            .spawn(brush.shape(Capsule2d::new(28.0, 22.0), look.clothes, (0.0, 36.0, 0.0)))
            .id(),
    );
    for side in [-1.0, 1.0] {
        let arm = brush.shape(Capsule2d::new(7.5, 26.0), dark, (side * 25.0, 36.0, 0.2));
        body(commands.spawn(arm).id());
        body(commands.spawn(brush.disc(6.0, look.skin, (side * 25.0, 18.0, 0.25))).id());
    }
    body(commands.spawn(brush.rect((12.0, 12.0), look.skin.darker(0.05), (0.0, 66.0, 0.3))).id());
    for part in head(commands, brush, &look) {
        body(part);
    }
    let lips = brush.shape(Ellipse::new(5.0, 3.2), rgb(0x5e2a26), (0.0, HEAD_Y - 9.0, 1.2));
    body(commands.spawn((Lips, lips)).id());
    for side in [-1.0, 1.0] {
        let at = (side * 7.0, HEAD_Y + 7.5, 1.2);
        let mut brow = commands.spawn((Brow, brush.rect((10.0, 2.6), rgb(0x2a211d), at)));
        brow.insert(Visibility::Hidden).entry::<Transform>().and_modify(move |mut at| {
            at.rotation = Quat::from_rotation_z(side * 0.45);
        });
        body(brow.id());
    }

    let torso = commands
        .spawn((Transform::from_scale(Vec3::new(look.size, look.size, 1.0)), Visibility::default()))
        .add_children(&parts)
        .id();
    let halo = commands
        .spawn((Halo, brush.glow(105.0, Color::srgba(1.0, 0.86, 0.45, 0.85), (0.0, 58.0, -1.0))))
        .insert(Visibility::Hidden)
        .id();
    let plate = commands.spawn(brush.plate(9.5, 46.0, (0.0, -2.0, 7.0))).id();
    let label = (
        Plate(name),
        Text2d::new(name),
        TextFont::from_font_size(14.0),
        TextColor(Color::srgb(0.96, 0.92, 0.84)),
        Transform::from_xyz(0.0, -2.0, 7.1),
    );
    let label = commands.spawn(label).id();
    let target = Sprite::from_color(Color::NONE, Vec2::new(84.0, 128.0));
    let target =
        commands.spawn((target, Pickable::default(), Transform::from_xyz(0.0, 52.0, 8.0))).id();
    commands.entity(figure).add_children(&[torso, halo, plate, label, target]);
}

const SHADOW: Color = Color::srgba(0.0, 0.0, 0.0, 0.28);

/// Face, hair, and headwear.
fn head(commands: &mut Commands, brush: &mut Brush, look: &Look) -> Vec<Entity> {
    let Look { skin, hair, clothes, head, beard, .. } = *look;
    let up = HEAD_Y;
    let mut parts = Vec::new();
    let cap = |degrees: f32| CircularSegment::from_degrees(HEAD_RADIUS + 1.8, degrees);
    match head {
        Head::Long => {
            parts.push(
                commands
                    .spawn(brush.shape(Capsule2d::new(23.0, 22.0), hair, (0.0, up - 8.0, -0.2)))
                    .id(),
            );
        }
        Head::Hood => {
            let hood =
                brush.shape(Ellipse::new(27.0, 30.0), clothes.darker(0.06), (0.0, up + 1.0, 0.35));
            parts.push(commands.spawn(hood).id());
        }
        Head::Bun => {
            parts.push(commands.spawn(brush.disc(10.5, hair, (0.0, up + 22.0, 0.3))).id());
        }
        Head::Short | Head::Bald | Head::Helmet | Head::Hat => {}
    }
    parts.push(commands.spawn(brush.disc(HEAD_RADIUS, skin, (0.0, up, 0.5))).id());
    if beard {
        let mut chin = commands.spawn(brush.shape(cap(172.0), hair, (0.0, up - 1.0, 0.7)));
        chin.entry::<Transform>().and_modify(|mut at| at.rotation = Quat::from_rotation_z(PI));
        parts.push(chin.id());
        parts.push(
            commands.spawn(brush.shape(Ellipse::new(9.0, 5.0), skin, (0.0, up - 6.5, 0.75))).id(),
        );
    }
    match head {
        Head::Short | Head::Long | Head::Bun => {
            parts.push(commands.spawn(brush.shape(cap(166.0), hair, (0.0, up + 1.0, 0.8))).id());
        }
        Head::Hood => {
            parts.push(commands.spawn(brush.shape(cap(96.0), hair, (0.0, up, 0.8))).id());
        }
        Head::Helmet => {
            let steel = rgb(0x8d949c);
            parts.push(commands.spawn(brush.shape(cap(176.0), steel, (0.0, up + 3.0, 0.8))).id());
            parts.push(
                commands.spawn(brush.rect((46.0, 5.0), rgb(0x6f767e), (0.0, up + 5.0, 0.9))).id(),
            );
        }
        Head::Hat => {
            let felt = clothes.darker(0.10);
            parts.push(
                commands
                    .spawn(brush.shape(Ellipse::new(32.0, 6.5), felt, (0.0, up + 11.0, 0.9)))
                    .id(),
            );
            parts.push(commands.spawn(brush.shape(cap(140.0), felt, (0.0, up + 5.0, 0.85))).id());
            let mut feather = commands.spawn(brush.shape(
                Ellipse::new(4.0, 17.0),
                rgb(0xd8573f),
                (20.0, up + 26.0, 0.95),
            ));
            feather
                .entry::<Transform>()
                .and_modify(|mut at| at.rotation = Quat::from_rotation_z(-0.6));
            parts.push(feather.id());
        }
        Head::Bald => {}
    }
    for side in [-1.0, 1.0] {
        let eye = brush.shape(Ellipse::new(2.4, 3.1), rgb(0x2a211d), (side * 7.0, up + 1.0, 1.1));
        parts.push(commands.spawn(eye).id());
    }
    parts
}

/// Moves the lips of speaking guests: with a voice by the shapes of its mouth.
fn move_lips(
    time: Res<Time>,
    mouths: Query<(Entity, &Mouth, &Mood, Option<&Speaking>)>,
    children: Query<&Children>,
    mut lips: Query<&mut Transform, With<Lips>>,
) {
    for (guest, mouth, mood, voice) in &mouths {
        let (open, wide) = match voice {
            Some(voice) => voices::lips(voice.shape()),
            None if mouth.is_talking() => {
                let beat = (time.elapsed_secs() * 17.0 + guest.index_u32() as f32).sin().abs();
                (0.55 + 0.65 * beat, 1.0)
            }
            None => (0.38, 1.0),
        };
        let mut below = children.iter_descendants(guest);
        if let Some(mut at) = below
            .find_map(|part| lips.get(part).ok().map(|_| part))
            .and_then(|part| lips.get_mut(part).ok())
        {
            // Lips do not jump.
            let step = 1.0 - (-30.0 * time.delta_secs()).exp();
            let goal = Vec2::new(mood.lips() * wide, open);
            at.scale = at.scale.xy().lerp(goal, step).extend(1.0);
        }
    }
}

/// Moves all guests slightly.
fn breathe(
    time: Res<Time>,
    guests: Query<(&Guest, &Children)>,
    mut parts: Query<&mut Transform, Without<Lips>>,
) {
    for (guest, children) in &guests {
        // The torso is the first child.
        if let Some(mut at) = children.first().and_then(|torso| parts.get_mut(*torso).ok()) {
            at.translation.y = 0.9 * (time.elapsed_secs() * 1.9 + guest.seat as f32 * 1.3).sin();
        }
    }
}
