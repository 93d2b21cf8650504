//! What the guests sell, and the action with which they sell it.

use std::f32::consts::{FRAC_PI_2, PI};

use bevy::prelude::*;
use bevy_walla::actions::schemars::{self, JsonSchema};
use bevy_walla::prelude::*;
use serde::Deserialize;

use crate::brush::{Brush, Painted};
use crate::guest::Guest;
use crate::player::Player;
use crate::purse::Purse;
use crate::room::mug;

/// Sells one of your wares to the player.
#[derive(Deserialize, JsonSchema)]
struct Sell {
    item: String,
}

/// A guest has called [`Sell`].
#[derive(Message, Clone, Copy, Debug)]
pub struct Sale {
    /// The guest.
    pub guest: Entity,
    /// The item.
    pub ware: &'static Ware,
    /// Whether the player had enough silver. If not, the guest keeps the item.
    pub paid: bool,
}

/// An item for sale.
#[derive(Debug)]
pub struct Ware {
    /// Name of the seller, in [`walla_examples::REGULARS`].
    seller: &'static str,
    /// The item with its article.
    one: &'static str,
    /// The item, as the seller's persona calls it.
    pub name: &'static str,
    /// The price in silver, which the persona says too.
    pub price: u32,
    icon: Icon,
}

/// Shape and colour of an item, about 40 units wide.
#[derive(Clone, Copy, Debug)]
enum Icon {
    Horseshoe,
    Sword,
    Mug,
    Key,
    Twigs,
    Leaves,
    Fur(Color),
    Blanket,
    Scroll(Color),
}

const fn ware(
    seller: &'static str,
    one: &'static str,
    name: &'static str,
    price: u32,
    icon: Icon,
) -> Ware {
    Ware { seller, one, name, price, icon }
}

const FOX: Color = Color::srgb(0.800, 0.430, 0.180);
const BEAR: Color = Color::srgb(0.420, 0.290, 0.210);
const RED: Color = Color::srgb(0.690, 0.240, 0.200);
const BLUE: Color = Color::srgb(0.240, 0.360, 0.620);
const IRON: Color = Color::srgb(0.640, 0.660, 0.690);
const BRASS: Color = Color::srgb(0.870, 0.690, 0.310);
const BARK: Color = Color::srgb(0.560, 0.400, 0.270);
const LEAF: Color = Color::srgb(0.420, 0.660, 0.400);
const WOOL: Color = Color::srgb(0.800, 0.740, 0.640);
const PARCHMENT: Color = Color::srgb(0.930, 0.870, 0.720);
const INK: Color = Color::srgb(0.110, 0.085, 0.070);

/// All wares. The first one of a seller is in the suggested question.
pub static WARES: [Ware; 11] = [
    ware("Greta", "a horseshoe", "horseshoe", 3, Icon::Horseshoe),
    ware("Greta", "a sword", "sword", 40, Icon::Sword),
    ware("Odo", "an ale", "ale", 1, Icon::Mug),
    ware("Odo", "a bed", "bed", 4, Icon::Key), // the key of the room
    ware("Mirelle", "some willow bark", "willow bark", 2, Icon::Twigs),
    ware("Mirelle", "some moon mint", "moon mint", 5, Icon::Leaves),
    ware("Tamsin", "a fox pelt", "fox pelt", 8, Icon::Fur(FOX)),
    ware("Tamsin", "a bear hide", "bear hide", 60, Icon::Fur(BEAR)),
    ware("Hesper", "a wool blanket", "wool blanket", 6, Icon::Blanket),
    ware("Quill", "a song", "song", 2, Icon::Scroll(BLUE)),
    ware("Quill", "a ballad", "ballad", 5, Icon::Scroll(RED)),
];

pub fn plugin(app: &mut App) {
    app.add_message::<Sale>().add_action::<Sell>().add_observer(sell).add_systems(Update, offer);
}

fn wares(seller: &str) -> impl Iterator<Item = &'static Ware> {
    WARES.iter().filter(move |ware| ware.seller == seller)
}

/// The question of a buyer, if this guest sells anything.
pub fn request(seller: &str) -> Option<String> {
    wares(seller).next().map(|ware| format!("I'd like to buy {}.", ware.one))
}

/// The actions of a guest, if it sells anything.
fn actions(seller: &str) -> Option<AgentActions> {
    let names: Vec<&str> = wares(seller).map(|ware| ware.name).collect();
    let actions =
        || AgentActions::new().allow::<Sell>().choices::<Sell>("item", names.iter().copied());
    (!names.is_empty()).then(actions)
}

/// A guest can sell while the player talks with it, and not to its neighbours.
fn offer(
    player: Res<Player>,
    guests: Query<(Entity, &Guest, Has<AgentActions>)>,
    mut commands: Commands,
) {
    if !player.is_changed() {
        return;
    }
    for (entity, guest, offers) in &guests {
        let is_asked = player.guest == Some(entity);
        if offers && !is_asked {
            commands.entity(entity).remove::<AgentActions>();
        } else if is_asked
            && !offers
            && let Some(actions) = actions(guest.persona.name)
        {
            commands.entity(entity).insert(actions);
        }
    }
}

/// Takes the price from the purse, and tells the seller the outcome.
fn sell(
    call: On<ActionCall<Sell>>,
    guests: Query<&Guest>,
    mut purse: ResMut<Purse>,
    mut sales: MessageWriter<Sale>,
    mut commands: Commands,
) {
    let Ok(guest) = guests.get(call.agent) else { return };
    let Some(ware) = wares(guest.persona.name).find(|ware| ware.name == call.item) else { return };
    let paid = purse.pay(ware.price);
    sales.write(Sale { guest: call.agent, ware, paid });
    // Sentences that the demo model knows: `tools/demo_model`.
    let outcome = if paid {
        format!("The player has the {}.", ware.name)
    } else {
        format!("The player does not have {} silver.", ware.price)
    };
    commands.entity(call.agent).action_result(call.id, outcome);
}

impl Ware {
    /// The shapes of the item, around the origin.
    pub fn shapes(&self, brush: &mut Brush) -> Vec<Painted> {
        match self.icon {
            Icon::Horseshoe => horseshoe(brush),
            Icon::Sword => vec![
                turned(brush.rect((5.0, 30.0), IRON, (4.0, 4.0, 0.1)), -PI / 4.0),
                turned(brush.rect((16.0, 4.0), BRASS, (-7.0, -7.0, 0.2)), -PI / 4.0),
                turned(brush.rect((4.0, 9.0), BARK, (-11.0, -11.0, 0.1)), -PI / 4.0),
            ],
            Icon::Mug => mug(brush, Vec3::new(-2.0, -11.0, 0.0)).into(),
            Icon::Key => vec![
                brush.shape(Annulus::new(4.5, 8.0), BRASS, (-11.0, 0.0, 0.1)),
                brush.rect((23.0, 4.0), BRASS, (7.0, 0.0, 0.1)),
                brush.rect((4.0, 8.0), BRASS, (10.0, -5.0, 0.1)),
                brush.rect((4.0, 8.0), BRASS, (16.5, -5.0, 0.1)),
            ],
            Icon::Twigs => [(-6.0, 0.25), (0.0, 0.0), (6.0, -0.25)]
                .map(|(x, tilt)| {
                    let twig = brush.shape(Capsule2d::new(3.2, 22.0), BARK, (x, 0.0, 0.1));
                    turned(twig, FRAC_PI_2 - tilt)
                })
                .into_iter()
                .chain([brush.rect((5.0, 17.0), PARCHMENT, (0.0, 0.0, 0.2))])
                .collect(),
            Icon::Leaves => [(-9.0, -2.0, 0.7), (9.0, -2.0, -0.7), (0.0, 3.0, 0.0)]
                .map(|(x, y, tilt)| {
                    turned(brush.shape(Ellipse::new(6.0, 12.0), LEAF, (x, y, 0.1)), tilt)
                })
                .into_iter()
                .chain([brush.rect((2.0, 22.0), LEAF.darker(0.12), (0.0, -3.0, 0.2))])
                .collect(),
            Icon::Fur(color) => fur(brush, color),
            Icon::Blanket => vec![
                brush.rect((36.0, 24.0), WOOL, (0.0, 0.0, 0.1)),
                brush.rect((36.0, 3.0), RED, (0.0, 7.0, 0.2)),
                brush.rect((36.0, 3.0), BLUE, (0.0, 1.0, 0.2)),
                brush.rect((36.0, 2.0), WOOL.darker(0.2), (0.0, -5.0, 0.2)),
            ],
            Icon::Scroll(ribbon) => vec![
                brush.rect((28.0, 22.0), PARCHMENT, (0.0, 0.0, 0.1)),
                brush.rect((5.0, 26.0), PARCHMENT.darker(0.12), (-15.0, 0.0, 0.2)),
                brush.rect((5.0, 26.0), ribbon, (15.0, 0.0, 0.2)),
                brush.disc(3.6, INK, (-3.0, -5.0, 0.2)),
                brush.rect((2.0, 14.0), INK, (0.0, 1.5, 0.2)),
                brush.rect((7.0, 3.0), INK, (3.0, 7.0, 0.2)),
            ],
        }
    }
}

fn turned((mesh, material, at): Painted, radians: f32) -> Painted {
    (mesh, material, at.with_rotation(Quat::from_rotation_z(radians)))
}

/// An arc of discs with nail holes.
fn horseshoe(brush: &mut Brush) -> Vec<Painted> {
    let on_arc = |step: i32, z: f32| {
        let at = Vec2::from_angle(FRAC_PI_2 + step as f32 * 0.17) * 11.5;
        Vec3::new(at.x, at.y, z)
    };
    let iron = (-13..=13).map(|step| brush.disc(4.4, IRON, on_arc(step, 0.1)));
    let mut parts: Vec<Painted> = iron.collect();
    parts.extend([-10, -5, 0, 5, 10].map(|step| brush.disc(1.3, INK, on_arc(step, 0.2))));
    parts
}

/// A hide with four legs, spread out.
fn fur(brush: &mut Brush, color: Color) -> Vec<Painted> {
    let mut parts = vec![
        brush.shape(Ellipse::new(16.0, 9.5), color, (0.0, 0.0, 0.2)),
        brush.shape(Ellipse::new(8.0, 4.0), color.lighter(0.12), (18.0, 0.0, 0.1)),
        brush.disc(6.0, color, (-16.0, 0.0, 0.2)),
    ];
    for (x, y) in [(-9.0, 9.0), (9.0, 9.0), (-9.0, -9.0), (9.0, -9.0)] {
        let leg = brush.shape(Ellipse::new(3.4, 7.0), color.darker(0.06), (x, y, 0.1));
        parts.push(turned(leg, -x.signum() * y.signum() * 0.6));
    }
    parts
}

#[cfg(test)]
mod tests {
    use walla_examples::REGULARS;

    use super::*;

    #[test]
    fn personas_name_their_wares_and_prices() {
        for ware in &WARES {
            let seller = REGULARS.iter().find(|persona| persona.name == ware.seller).unwrap();
            let after = seller.text.split(ware.name).nth(1).expect(ware.name);
            let price = after.split_whitespace().find_map(|word| word.parse().ok());
            assert_eq!(price, Some(ware.price), "{}", ware.name);
            assert!(ware.one.ends_with(ware.name));
        }
    }

    #[test]
    fn sellers_can_call_only_their_own_wares() {
        let actions = actions("Greta").unwrap();
        assert_eq!(actions.fault(), None);
        let parameters = actions.specs()[0].parameters().to_string();
        assert!(parameters.contains("horseshoe") && !parameters.contains("ale"), "{parameters}");
        assert_eq!(super::actions("Voss"), None);
        assert_eq!(request("Odo").as_deref(), Some("I'd like to buy an ale."));
    }
}
