//! The player's purse in the upper right corner, and items in flight to it.

use bevy::camera::visibility::RenderLayers;
use bevy::camera::{CameraMainTextureUsages, CameraOutputMode};
use bevy::prelude::*;
use bevy::render::render_resource::{BlendState, TextureUsages};

use crate::brush::Brush;
use crate::guest::Guest;
use crate::wares::{Sale, Ware};
use crate::{ROOM, projection};

/// Silver at the start: enough for a few wares, but not for a sword.
const SILVER: u32 = 10;

/// Places for kinds of items; [`SILVER`] buys no more.
const PLACES: usize = 4;

/// Duration of a flight.
const FLIGHT_SECONDS: f32 = 3.0;

/// Height of a flight's arc.
const ARC: f32 = 70.0;

const BOARD_SIZE: Vec2 = Vec2::new(372.0, 78.0);
const BOARD_CENTER: Vec2 =
    Vec2::new(ROOM.x / 2.0 - 12.0 - BOARD_SIZE.x / 2.0, ROOM.y / 2.0 - 8.0 - BOARD_SIZE.y / 2.0);
const PLACE_WIDTH: f32 = 70.0;

/// Items in flight are drawn over the speech bubbles, by a separate camera.
const IN_FLIGHT: RenderLayers = RenderLayers::layer(1);

/// In front of all guests and lights.
const BOARD_Z: f32 = 60.0;
const ITEM_Z: f32 = 64.0;

const BOARD: Color = Color::srgb(0.290, 0.195, 0.125);
const RIM: Color = Color::srgb(0.560, 0.380, 0.230);
const HOLLOW: Color = Color::srgb(0.195, 0.130, 0.088);
const LEATHER: Color = Color::srgb(0.690, 0.480, 0.290);
const SILVERY: Color = Color::srgb(0.800, 0.815, 0.835);
const PALE: Color = Color::srgb(0.960, 0.920, 0.840);

/// The player's silver and items.
#[derive(Resource, Debug)]
pub struct Purse {
    silver: u32,
    stacks: Vec<Stack>,
}

/// Items of one kind.
#[derive(Debug)]
struct Stack {
    name: &'static str,
    /// Items that have arrived.
    count: u32,
}

/// An item in flight from a guest to the purse.
#[derive(Component)]
pub struct Flight {
    from: Vec2,
    /// Index of the place that it goes to.
    place: usize,
    seconds: f32,
}

/// A text of the board.
#[derive(Component, Clone, Copy)]
enum Label {
    Silver,
    Count(usize),
}

impl Default for Purse {
    fn default() -> Self {
        Self { silver: SILVER, stacks: Vec::with_capacity(PLACES) }
    }
}

impl Purse {
    /// The silver left.
    pub fn silver(&self) -> u32 {
        self.silver
    }

    /// Pays a price; false, without effect, if the player does not have so much.
    pub fn pay(&mut self, price: u32) -> bool {
        let left = self.silver.checked_sub(price);
        self.silver = left.unwrap_or(self.silver);
        left.is_some()
    }

    /// Index of the place for an item of this name.
    fn place(&mut self, name: &'static str) -> usize {
        self.stacks.iter().position(|stack| stack.name == name).unwrap_or_else(|| {
            self.stacks.push(Stack { name, count: 0 });
            self.stacks.len() - 1
        })
    }
}

pub fn plugin(app: &mut App) {
    app.init_resource::<Purse>()
        .add_systems(Startup, (camera, board))
        .add_systems(Update, (take_off, fly, watch, labels).chain());
}

/// Centre of a place for items.
fn place_center(place: usize) -> Vec2 {
    let left = BOARD_CENTER.x + BOARD_SIZE.x / 2.0 - 4.0 - PLACE_WIDTH * PLACES as f32;
    Vec2::new(left + PLACE_WIDTH * (place as f32 + 0.5), BOARD_CENTER.y)
}

fn camera(mut commands: Commands) {
    // Cameras with equal usages share a texture, and the second one would erase the interface.
    let own_texture = CameraMainTextureUsages::default().with(TextureUsages::COPY_DST);
    let blend_state = Some(BlendState::PREMULTIPLIED_ALPHA_BLENDING);
    let on_top = Camera {
        order: 1,
        clear_color: ClearColorConfig::Custom(Color::NONE),
        output_mode: CameraOutputMode::Write { blend_state, clear_color: ClearColorConfig::None },
        ..default()
    };
    commands.spawn((Camera2d, on_top, own_texture, projection(), IN_FLIGHT));
}

/// Without a flight the second camera is inactive: software renderers need long for it.
fn watch(
    flights: Query<(), With<Flight>>,
    mut camera: Single<&mut Camera, Without<IsDefaultUiCamera>>,
) {
    let is_active = !flights.is_empty();
    if camera.is_active != is_active {
        camera.is_active = is_active;
    }
}

fn board(mut commands: Commands, mut brush: Brush) {
    let at = |offset: (f32, f32), z: f32| (BOARD_CENTER + Vec2::from(offset)).extend(BOARD_Z + z);
    let (width, height) = (BOARD_SIZE.x, BOARD_SIZE.y);
    commands.spawn(brush.rect((width, height), RIM, at((0.0, 0.0), 0.0)));
    commands.spawn(brush.rect((width - 4.0, height - 4.0), BOARD, at((0.0, 0.0), 0.1)));
    for place in 0..PLACES {
        let center = place_center(place);
        let hollow = (PLACE_WIDTH - 6.0, height - 12.0);
        commands.spawn(brush.rect(hollow, HOLLOW, center.extend(BOARD_Z + 0.2)));
        let corner = center + Vec2::new(PLACE_WIDTH / 2.0 - 16.0, height / 2.0 - 18.0);
        text(&mut commands, Label::Count(place), 14.0, corner.extend(ITEM_Z + 2.0));
    }
    let x = -width / 2.0 + 44.0;
    commands.spawn(brush.shape(Ellipse::new(13.0, 4.0), LEATHER.darker(0.12), at((x, 27.0), 0.2)));
    commands.spawn(brush.rect((15.0, 12.0), LEATHER, at((x, 20.0), 0.3)));
    commands.spawn(brush.shape(Ellipse::new(22.0, 16.0), LEATHER, at((x, 1.0), 0.3)));
    commands.spawn(brush.rect((19.0, 4.0), LEATHER.darker(0.18), at((x, 16.0), 0.4)));
    commands.spawn(brush.disc(9.0, SILVERY.darker(0.2), at((x, 0.0), 0.4)));
    commands.spawn(brush.disc(7.5, SILVERY, at((x, 0.0), 0.5)));
    text(&mut commands, Label::Silver, 14.0, at((x, -25.0), 0.5));
}

fn text(commands: &mut Commands, label: Label, size: f32, at: Vec3) {
    let font = TextFont::from_font_size(size);
    let at = Transform::from_translation(at);
    commands.spawn((label, Text2d::default(), font, TextColor(PALE), at));
}

/// Starts the flight of sold items.
fn take_off(
    mut sales: MessageReader<Sale>,
    mut purse: ResMut<Purse>,
    guests: Query<&Transform, With<Guest>>,
    mut brush: Brush,
    mut commands: Commands,
) {
    for Sale { guest, ware, .. } in sales.read().filter(|sale| sale.paid) {
        let Ok(feet) = guests.get(*guest) else { continue };
        let from = feet.translation.truncate() + Vec2::Y * 40.0;
        let flight = Flight { from, place: purse.place(ware.name), seconds: 0.0 };
        let item =
            (flight, Transform::from_translation(from.extend(ITEM_Z)), Visibility::default());
        let item = commands.spawn(item).id();
        draw(&mut commands, &mut brush, item, ware);
    }
}

/// The item's shapes, and its name on a plate.
fn draw(commands: &mut Commands, brush: &mut Brush, item: Entity, ware: &Ware) {
    let name_y = -27.0;
    let shapes = ware.shapes(brush);
    let plate = brush.plate(8.0, ware.name.len() as f32 * 4.6, (0.0, name_y, 0.5));
    commands.entity(item).with_children(|item| {
        for (mesh, material, mut at) in shapes {
            at.translation.y += 4.0;
            item.spawn((mesh, material, at, IN_FLIGHT));
        }
        item.spawn((plate, IN_FLIGHT));
        item.spawn((
            Text2d::new(ware.name),
            TextFont::from_font_size(12.0),
            TextColor(PALE),
            Transform::from_xyz(0.0, name_y, 0.6),
            IN_FLIGHT,
        ));
    });
}

/// Moves items. The first one of its kind stays in its place, others are counted.
fn fly(
    time: Res<Time>,
    mut purse: ResMut<Purse>,
    mut items: Query<(Entity, &mut Flight, &mut Transform)>,
    mut commands: Commands,
) {
    for (item, mut flight, mut at) in &mut items {
        flight.seconds += time.delta_secs();
        let way = (flight.seconds / FLIGHT_SECONDS).min(1.0);
        let (position, scale) = on_way(flight.from, place_center(flight.place), way);
        *at = Transform::from_translation(position.extend(ITEM_Z)).with_scale(Vec3::splat(scale));
        if way < 1.0 {
            continue;
        }
        let Some(stack) = purse.stacks.get_mut(flight.place) else { continue };
        stack.count += 1;
        if stack.count == 1 {
            commands.entity(item).remove::<Flight>().remove_recursive::<Children, RenderLayers>();
        } else {
            commands.entity(item).despawn();
        }
    }
}

/// Position and scale at a fraction of the way: an arc, larger in its middle.
fn on_way(from: Vec2, to: Vec2, way: f32) -> (Vec2, f32) {
    let eased = way * way * (3.0 - 2.0 * way);
    let bend = (eased * std::f32::consts::PI).sin();
    (from.lerp(to, eased) + Vec2::Y * ARC * bend, 1.0 + 0.25 * bend)
}

fn labels(purse: Res<Purse>, mut labels: Query<(&Label, &mut Text2d)>) {
    if !purse.is_changed() {
        return;
    }
    for (label, mut text) in &mut labels {
        text.0 = match *label {
            Label::Silver => format!("{} silver", purse.silver),
            Label::Count(place) => match purse.stacks.get(place) {
                Some(stack) if stack.count > 1 => format!("×{}", stack.count),
                _ => String::new(),
            },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wares::WARES;

    #[test]
    fn a_price_is_paid_only_in_full() {
        let mut purse = Purse::default();
        assert!(purse.pay(3));
        assert!(!purse.pay(40));
        assert!(purse.pay(7));
        assert_eq!(purse.silver(), 0);
    }

    #[test]
    fn the_board_has_a_place_for_everything_that_can_be_bought() {
        let mut prices = WARES.each_ref().map(|ware| ware.price);
        prices.sort_unstable();
        let cheapest: u32 = prices.iter().take(PLACES + 1).sum();
        assert!(cheapest > SILVER, "{cheapest}");
    }

    #[test]
    fn items_of_a_kind_share_a_place() {
        let mut purse = Purse::default();
        assert_eq!(["ale", "song", "ale"].map(|name| purse.place(name)), [0, 1, 0]);
    }

    #[test]
    fn an_item_flies_from_the_guest_to_its_place() {
        let (from, to) = (Vec2::new(-105.0, -210.0), place_center(0));
        assert_eq!(on_way(from, to, 0.0), (from, 1.0));
        let (end, scale) = on_way(from, to, 1.0);
        assert!(end.distance(to) < 0.01 && (scale - 1.0).abs() < 0.01);
    }
}
