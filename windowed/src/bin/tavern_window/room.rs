//! The room: walls, floor, fire, bar, tables, lanterns.

use bevy::prelude::*;

use crate::ROOM;
use crate::brush::{Brush, Painted};
use crate::seats::{BACK_Y, FRONT_Y, WALL_Y};

const WALL: Color = Color::srgb(0.235, 0.165, 0.125);
const WALL_SEAM: Color = Color::srgb(0.195, 0.135, 0.100);
const BEAM: Color = Color::srgb(0.135, 0.092, 0.068);
const FLOOR: Color = Color::srgb(0.375, 0.262, 0.178);
const FLOOR_SEAM: Color = Color::srgb(0.316, 0.217, 0.145);
const STONE: Color = Color::srgb(0.345, 0.330, 0.325);
const STONE_DARK: Color = Color::srgb(0.262, 0.250, 0.248);
const SOOT: Color = Color::srgb(0.075, 0.060, 0.055);
const TABLE_TOP: Color = Color::srgb(0.560, 0.380, 0.230);
const TABLE_SIDE: Color = Color::srgb(0.430, 0.285, 0.170);
const TABLE_DARK: Color = Color::srgb(0.335, 0.218, 0.128);
const NIGHT: Color = Color::srgb(0.090, 0.130, 0.235);
const MOON: Color = Color::srgb(0.930, 0.915, 0.820);
const PEWTER: Color = Color::srgb(0.660, 0.670, 0.690);
const FOAM: Color = Color::srgb(0.965, 0.945, 0.885);
const FIRELIGHT: Color = Color::srgba(1.0, 0.620, 0.220, 0.50);
const LAMPLIGHT: Color = Color::srgba(1.0, 0.780, 0.420, 0.42);

/// A light that flickers.
#[derive(Component)]
struct Flicker {
    /// Phase, so that no two lights flicker in step.
    phase: f32,
}

pub fn plugin(app: &mut App) {
    app.add_systems(Startup, (walls, fireplace, bar, furniture)).add_systems(Update, flicker);
}

fn walls(mut commands: Commands, mut brush: Brush) {
    let wall_height = ROOM.y / 2.0 - WALL_Y;
    let floor_height = ROOM.y - wall_height;
    let wall_middle = WALL_Y + wall_height / 2.0;
    commands.spawn(brush.rect((ROOM.x, wall_height), WALL, (0.0, wall_middle, 0.0)));
    commands.spawn(brush.rect(
        (ROOM.x, floor_height),
        FLOOR,
        (0.0, WALL_Y - floor_height / 2.0, 0.0),
    ));
    for seam in -7..=7 {
        let x = seam as f32 * 88.0;
        commands.spawn(brush.rect((3.0, wall_height), WALL_SEAM, (x, wall_middle, 0.1)));
    }
    // Boards get wider towards the viewer.
    let mut y = WALL_Y;
    let mut width = 14.0;
    while y > -ROOM.y / 2.0 {
        commands.spawn(brush.rect((ROOM.x, 2.5), FLOOR_SEAM, (0.0, y, 0.1)));
        y -= width;
        width *= 1.22;
    }
    commands.spawn(brush.rect((ROOM.x, 12.0), BEAM, (0.0, WALL_Y + 4.0, 0.2)));
    commands.spawn(brush.rect((ROOM.x, 26.0), BEAM, (0.0, ROOM.y / 2.0 - 13.0, 0.3)));
    for x in [-420.0, 205.0, 620.0] {
        commands.spawn(brush.rect((22.0, wall_height), BEAM, (x, wall_middle, 0.2)));
    }
    window(&mut commands, &mut brush, Vec2::new(20.0, 232.0));
    for (index, x) in [-170.0, 240.0].into_iter().enumerate() {
        lantern(&mut commands, &mut brush, Vec2::new(x, 292.0), index as f32);
    }
}

fn window(commands: &mut Commands, brush: &mut Brush, at: Vec2) {
    commands.spawn(brush.rect((156.0, 108.0), BEAM, at.extend(0.3)));
    commands.spawn(brush.rect((140.0, 92.0), NIGHT, at.extend(0.4)));
    commands.spawn(brush.disc(15.0, MOON, (at.x + 34.0, at.y + 18.0, 0.5)));
    commands.spawn(brush.disc(13.0, NIGHT, (at.x + 40.0, at.y + 22.0, 0.6)));
    for (x, y) in
        [(-52.0, 26.0), (-20.0, 8.0), (-44.0, -22.0), (12.0, 34.0), (54.0, -18.0), (14.0, -26.0)]
    {
        commands.spawn(brush.disc(1.6, MOON, (at.x + x, at.y + y, 0.5)));
    }
    commands.spawn(brush.rect((6.0, 92.0), BEAM, at.extend(0.7)));
    commands.spawn(brush.rect((140.0, 6.0), BEAM, at.extend(0.7)));
}

fn lantern(commands: &mut Commands, brush: &mut Brush, at: Vec2, phase: f32) {
    commands.spawn(brush.rect((3.0, 60.0), BEAM, (at.x, at.y + 38.0, 0.8)));
    commands.spawn(brush.rect((22.0, 28.0), BEAM, at.extend(0.9)));
    commands.spawn(brush.rect((14.0, 20.0), Color::srgb(1.0, 0.850, 0.500), at.extend(1.0)));
    commands.spawn((brush.glow(180.0, LAMPLIGHT, at.extend(30.0)), Flicker { phase }));
}

fn fireplace(mut commands: Commands, mut brush: Brush) {
    let x = -520.0;
    let base = WALL_Y - 6.0;
    commands.spawn(brush.rect((150.0, 372.0), STONE_DARK, (x, base + 186.0, 0.4)));
    commands.spawn(brush.rect((214.0, 164.0), STONE, (x, base + 82.0, 0.5)));
    // Stones, laid in courses.
    for course in 0..4 {
        for stone in 0..4 {
            let shift = if course % 2 == 0 { 0.0 } else { 26.0 };
            let (left, up) = (stone as f32 * 54.0 - 92.0 + shift, course as f32 * 41.0 + 20.0);
            if left < 96.0 {
                commands.spawn(brush.rect((49.0, 36.0), STONE_DARK, (x + left, base + up, 0.55)));
            }
        }
    }
    commands.spawn(brush.rect((240.0, 16.0), TABLE_DARK, (x, base + 170.0, 0.8)));
    commands.spawn(brush.rect((130.0, 92.0), SOOT, (x, base + 46.0, 0.7)));
    commands.spawn(brush.shape(
        CircularSegment::from_degrees(73.0, 126.0),
        SOOT,
        (x, base + 59.0, 0.7),
    ));
    for (tilt, y) in [(0.28, 12.0), (-0.28, 14.0)] {
        let log = brush.shape(Capsule2d::new(8.0, 76.0), TABLE_DARK, (x, base + y, 0.8));
        commands.spawn(log).entry::<Transform>().and_modify(move |mut at| {
            at.rotation = Quat::from_rotation_z(std::f32::consts::FRAC_PI_2 + tilt);
        });
    }
    for (dx, height, color, z) in [
        (-20.0, 46.0, Color::srgb(0.900, 0.330, 0.120), 0.85),
        (18.0, 54.0, Color::srgb(0.930, 0.420, 0.130), 0.86),
        (0.0, 66.0, Color::srgb(0.980, 0.560, 0.160), 0.87),
        (-4.0, 40.0, Color::srgb(1.000, 0.800, 0.320), 0.88),
        (8.0, 24.0, Color::srgb(1.000, 0.930, 0.620), 0.89),
    ] {
        let flame = Ellipse::new(height * 0.28, height / 2.0);
        commands.spawn((
            brush.shape(flame, color, (x + dx, base + 16.0 + height / 2.0, z)),
            Flicker { phase: dx },
        ));
    }
    commands.spawn((brush.glow(250.0, FIRELIGHT, (x, base + 50.0, 30.0)), Flicker { phase: 0.7 }));
}

fn bar(mut commands: Commands, mut brush: Brush) {
    let bottles = [
        Color::srgb(0.330, 0.520, 0.330),
        Color::srgb(0.620, 0.270, 0.220),
        Color::srgb(0.700, 0.560, 0.260),
        Color::srgb(0.280, 0.420, 0.560),
        Color::srgb(0.480, 0.320, 0.520),
    ];
    for (row, y) in [150.0, 214.0].into_iter().enumerate() {
        commands.spawn(brush.rect((300.0, 7.0), TABLE_DARK, (440.0, y, 0.4)));
        for place in 0..11 {
            let height = 22.0 + (place * 7 + row * 5) as f32 % 13.0;
            let x = 310.0 + place as f32 * 26.0;
            if let Some(color) = bottles.get((place * 3 + row * 2) % bottles.len()) {
                commands.spawn(brush.rect(
                    (13.0, height),
                    *color,
                    (x, y + 3.5 + height / 2.0, 0.5),
                ));
                commands.spawn(brush.rect((5.0, 10.0), *color, (x, y + 8.0 + height, 0.5)));
            }
        }
    }
    for x in [560.0, 604.0] {
        commands.spawn(brush.shape(Ellipse::new(24.0, 30.0), TABLE_SIDE, (x, 30.0, 0.6)));
        for band in [-14.0, 14.0] {
            commands.spawn(brush.rect((44.0, 4.0), BEAM, (x, 30.0 + band, 0.65)));
        }
    }
    // The counter, in front of the innkeeper (whose figure is between 12 and 17).
    let (x, top) = (506.0, BACK_Y + 50.0);
    commands.spawn(brush.rect((262.0, 66.0), TABLE_SIDE, (x, top - 33.0, 18.0)));
    for panel in 0..4 {
        let left = x - 96.0 + panel as f32 * 64.0;
        commands.spawn(brush.rect((50.0, 44.0), TABLE_DARK, (left, top - 36.0, 18.1)));
    }
    commands.spawn(brush.rect((278.0, 11.0), TABLE_TOP, (x, top, 18.2)));
    commands.spawn_batch(mug(&mut brush, Vec3::new(402.0, top + 5.0, 18.3)));
    commands.spawn_batch(mug(&mut brush, Vec3::new(556.0, top + 5.0, 18.3)));
}

fn furniture(mut commands: Commands, mut brush: Brush) {
    for (x, y, z) in [
        (25.0, BACK_Y, 18.0),
        (-420.0, FRONT_Y, 48.0),
        (0.0, FRONT_Y, 48.0),
        (420.0, FRONT_Y, 48.0),
    ] {
        table(&mut commands, &mut brush, Vec3::new(x, y, z));
    }
}

/// A table between two guests, its feet at `at`.
fn table(commands: &mut Commands, brush: &mut Brush, at: Vec3) {
    let Vec3 { x, y, z } = at;
    commands.spawn(brush.shape(
        Ellipse::new(92.0, 9.0),
        Color::srgba(0.0, 0.0, 0.0, 0.28),
        (x, y - 2.0, z - 8.0),
    ));
    for side in [-52.0, 52.0] {
        commands.spawn(brush.rect((11.0, 40.0), TABLE_DARK, (x + side, y + 18.0, z)));
    }
    commands.spawn(brush.rect((150.0, 10.0), TABLE_SIDE, (x, y + 35.0, z + 0.1)));
    commands.spawn(brush.shape(Ellipse::new(82.0, 9.0), TABLE_SIDE, (x, y + 42.0, z + 0.2)));
    commands.spawn(brush.shape(Ellipse::new(82.0, 9.0), TABLE_TOP, (x, y + 45.0, z + 0.3)));
    commands.spawn_batch(mug(brush, Vec3::new(x - 30.0, y + 46.0, z + 0.4)));
    commands.spawn_batch(mug(brush, Vec3::new(x + 34.0, y + 43.0, z + 0.4)));
    commands.spawn(brush.rect((7.0, 15.0), FOAM, (x, y + 54.0, z + 0.4)));
    commands.spawn(brush.shape(
        Ellipse::new(3.0, 6.0),
        Color::srgb(1.0, 0.82, 0.35),
        (x, y + 67.0, z + 0.5),
    ));
    commands.spawn((brush.glow(62.0, LAMPLIGHT, (x, y + 64.0, z + 0.6)), Flicker { phase: x }));
}

/// A mug, its bottom at `at`.
pub fn mug(brush: &mut Brush, at: Vec3) -> [Painted; 3] {
    [
        brush.shape(Annulus::new(4.0, 6.5), PEWTER, at + Vec3::new(8.0, 8.0, 0.0)),
        brush.rect((14.0, 16.0), PEWTER, at + Vec3::new(0.0, 8.0, 0.05)),
        brush.shape(Ellipse::new(7.5, 4.0), FOAM, at + Vec3::new(0.0, 17.0, 0.1)),
    ]
}

fn flicker(time: Res<Time>, mut lights: Query<(&Flicker, &mut Transform)>) {
    for (Flicker { phase }, mut at) in &mut lights {
        let t = time.elapsed_secs() + phase;
        let size = 1.0 + 0.035 * (t * 7.3).sin() + 0.025 * (t * 12.7 + phase).sin();
        at.scale = Vec3::new(1.0, size, 1.0);
    }
}
